from graft.documents import Document, document_messages

DOCUMENTS = [Document("a.txt", "First text.\n"), Document("b.md", "Second text.")]


def test_question_without_documents_is_the_message():
    assert document_messages("Why?", []) == [{"role": "user", "content": "Why?"}]


def test_documents_come_in_order_before_the_question():
    [message] = document_messages("Why?", DOCUMENTS)
    places = [message["content"].index(each) for each in ("a.txt", "First", "b.md", "Second")]
    assert places == sorted(places)
    assert message["content"].endswith("Why?")


def test_questions_about_the_same_documents_share_a_prefix():
    one, other = (document_messages(text, DOCUMENTS)[0]["content"] for text in ("Why?", "Who?"))
    assert one.removesuffix("Why?") == other.removesuffix("Who?")
