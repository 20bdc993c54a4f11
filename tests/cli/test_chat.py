def test_conversation_grows_turn_by_turn(cli, engine, document):
    done = cli("chat", "--doc", document, stdin="How fast?\nReally?\n/quit\nignored\n")
    assert done.exit_code == 0
    assert done.stdout == "Four hours.\nFour hours.\n"
    first, second = (call[0] for call in engine.calls)
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[0] == first[0]
    assert second[1]["content"] == "Four hours."
    assert second[2]["content"] == "Really?"


def test_reset_drops_the_messages_and_keeps_the_documents(cli, engine, document):
    cli("chat", "--doc", document, stdin="How fast?\n/reset\nWho?\n")
    [message] = engine.calls[1][0]
    assert "within four hours" in message["content"]
    assert "How fast?" not in message["content"]


def test_interruption_ends_the_answer_and_not_the_program(cli, engine):
    engine.interruption = KeyboardInterrupt()
    done = cli("chat", stdin="How fast?\nReally?\n")
    assert done.exit_code == 0
    assert "stopped" in done.stderr
    assert engine.streams[0].closed
    assert engine.calls[1][0][1]["content"] == "Four "


def test_refused_turn_changes_nothing(cli, engine):
    done = cli("chat", stdin="too long\nHow fast?\n")
    assert "error: the prompt has 9000 tokens" in done.stderr
    assert [message["content"] for message in engine.calls[1][0]] == ["How fast?"]


def test_empty_lines_and_unknown_commands_generate_nothing(cli, engine):
    done = cli("chat", stdin="\n/what\n")
    assert done.exit_code == 0
    assert engine.calls == []


def test_interruption_before_the_first_token_changes_nothing(cli, engine, monkeypatch):
    monkeypatch.setattr(engine, "stream", interrupted_once(engine.stream))
    cli("chat", stdin="How fast?\nReally?\n")
    assert [message["content"] for message in engine.calls[0][0]] == ["Really?"]


def interrupted_once(stream):
    asked = []

    def interrupted(*args, **options):
        asked.append(args)
        if len(asked) == 1:
            raise KeyboardInterrupt
        return stream(*args, **options)

    return interrupted
