"""Drafts are made as long as they pay by the clock."""

from dataclasses import replace

import numpy as np
import pytest

from graft.draft.drafter import Budget, DraftContext
from graft.draft.pacing.paced import FIRST, LEAVE, LET_GO, LOOK, WOKEN, Paced
from graft.draft.pacing.trial import EARLY, LATE, REFRESH
from graft.models.language_model import TargetStep
from graft.sampling import Sampler, SamplingParams
from graft.tree.draft_tree import chain, root_only

BUDGET = Budget(8, np.linspace(1.0, 1.5, 9))


class Asked:
    """Counts how often it is asked, and by whom it was told what; may see a copy."""

    def __init__(self):
        self.rounds, self.told, self.copying, self.thought = 0, [], False, 0

    def is_copying(self, sequence):
        return self.copying

    def start(self, context):
        self.told.append(("start", context.sequence))

    def propose(self, contexts, budget):
        self.rounds, self.budget = self.rounds + 1, budget
        return [chain([context.root, 9]) for context in contexts]

    def observe(self, steps):
        self.told += [("step", step.sequence) for step in steps]

    def finish(self, sequence):
        self.told.append(("finish", sequence))

    def detach(self, sequence):
        self.told.append(("leave", sequence))

    def update_async(self):
        self.thought += 1


class Life:
    """An engine's rounds on a clock of our own."""

    def __init__(self, *, plain=1.0, networks=False, least=0):
        self.now, self.plain = 0.0, plain
        self.copies, self.everybody = Asked(), Asked()
        everybody = self.everybody if networks else None
        self.paced = Paced(self.copies, lambda: self.now, everybody, least=least)
        self.drafted, self.owed = [], 0.0

    def _whole(self, tokens):
        """So many on average."""
        self.owed += tokens
        count, self.owed = int(self.owed), self.owed % 1
        return count

    def rounds(self, count, *, seconds, tokens, whose=(0,), temperature=0.0, reads=False):
        """Rounds with drafts take so long and bring so many tokens to each sequence."""
        contexts = [DraftContext(each, [1, 2], [], tokens=[3]) for each in whose]
        for context in contexts:
            params = SamplingParams(temperature=temperature, seed=0)
            context.sampler = Sampler(params, context.prompt, 10)
        before = len(self.drafted)
        for _ in range(count):
            trees = self.paced.propose(contexts, replace(BUDGET, reads=reads))
            drafted = len(trees[0]) > 1
            self.drafted.append(drafted)
            self.now += seconds if drafted else self.plain
            come = self._whole(tokens) if drafted else 1
            steps = [TargetStep(each, [5] * come) for each in whose]
            self.paced.observe(steps)
        return sum(self.drafted[before:]) / count


def test_the_first_rounds_show_what_plain_decoding_takes():
    life = Life()
    life.rounds(20, seconds=1.2, tokens=2)
    assert life.drafted == [False] * FIRST + [True] * 16


def test_drafts_that_pay_go_on_but_for_a_look_at_plain_decoding():
    life = Life()
    life.rounds(FIRST, seconds=1.2, tokens=2)
    assert life.rounds(EARLY, seconds=1.2, tokens=2) == 1
    assert life.rounds(REFRESH, seconds=1.2, tokens=2) == 0
    life.rounds(10 * LATE, seconds=1.2, tokens=2)
    share = life.rounds(10 * (LATE + REFRESH), seconds=1.2, tokens=2)
    assert share == pytest.approx(1 - REFRESH / (LATE + REFRESH), abs=0.01)


def test_plain_rounds_that_were_seen_at_a_bad_time_are_soon_looked_at_again():
    life = Life(plain=2.0)
    life.rounds(FIRST, seconds=1.5, tokens=1.05)
    life.plain = 1.0
    life.rounds(EARLY + REFRESH, seconds=1.5, tokens=1.05)
    assert life.rounds(200, seconds=1.5, tokens=1.05) < 0.35


@pytest.mark.parametrize(("seconds", "tokens", "most"), [(2.5, 1, 3), (2.5, 2, 16), (1.3, 1, 13)])
def test_a_hopeless_trial_is_short(seconds, tokens, most):
    life = Life()
    life.rounds(FIRST + 17, seconds=seconds, tokens=tokens)
    assert sum(life.drafted) == most


def some_copied(life, count, *, copied):
    """Each thirty rounds in which nothing can be copied; and in every fourth a few more tokens."""
    share = []
    for number in range(count):
        if number % 4 == 3:
            life.rounds(3, seconds=1.3, tokens=copied)
        share.append(life.rounds(30, seconds=1.06, tokens=1))
    return sum(share[count // 2 :]) / (count - count // 2)


def test_drafts_that_pay_in_all_are_soon_tried_again():
    assert some_copied(Life(), 100, copied=8) > 0.4
    assert some_copied(Life(), 100, copied=1.4) < 0.12
    life = Life()
    some_copied(life, 100, copied=8)
    life.rounds(1000, seconds=1.06, tokens=1)  # what was saved is used up
    assert life.rounds(3000, seconds=1.06, tokens=1) < 0.1


@pytest.mark.parametrize("seconds", [1.2, 2.0, 6.0])
def test_drafts_that_do_not_pay_cost_little(seconds):
    life = Life()
    life.rounds(3000, seconds=seconds, tokens=1)
    lost = life.now / 3000 - 1
    assert 0 < lost < 0.03 * seconds


@pytest.mark.parametrize("held_up", range(FIRST))
def test_a_round_that_was_held_up_by_something_else_does_not_count(held_up):
    life = Life()
    for number in range(FIRST):
        life.plain = 20.0 if number == held_up else 1.0
        life.rounds(1, seconds=1.5, tokens=1)
    life.plain = 1.0
    assert life.rounds(200, seconds=1.5, tokens=1) < 0.2


def test_nobody_is_asked_before_plain_rounds_are_known():
    life = Life(plain=3.0)
    for sequence in range(FIRST):  # each a round of its own: none shows how long it took
        life.rounds(1, seconds=1.2, tokens=1, whose=[sequence])
    life.plain = 1.0
    assert life.rounds(FIRST, seconds=1.2, tokens=3) == 0
    assert life.rounds(50, seconds=1.2, tokens=3) == 1 - REFRESH / 50  # one look


def test_a_machine_that_was_slower_at_first_is_no_merit_of_drafts():
    life = Life(plain=1.3)
    life.rounds(FIRST, seconds=1.2, tokens=1)
    life.plain = 1.0
    assert life.rounds(600, seconds=1.2, tokens=1) < 0.3


def test_a_slower_machine_slows_both_down():
    """All rounds take three times what was measured: drafts still pay."""
    life = Life(plain=3.0)
    life.rounds(FIRST, seconds=4.0, tokens=2)
    assert life.rounds(200, seconds=4.0, tokens=2) > 0.9


def test_a_text_that_can_be_copied_later_is_noticed():
    life = Life()
    life.rounds(300, seconds=1.5, tokens=1)
    life.rounds(600, seconds=1.5, tokens=4)
    assert life.rounds(200, seconds=1.5, tokens=4) > 0.9


def test_while_copies_rest_those_in_sight_are_asked_for():
    life = Life()
    life.rounds(300, seconds=1.5, tokens=1)
    assert life.rounds(10, seconds=1.5, tokens=1) == 0  # they rest
    life.copies.copying = True
    life.rounds(LOOK, seconds=1.5, tokens=4)  # they are seen soon
    assert life.rounds(30, seconds=1.5, tokens=4) == 1


def test_answers_of_a_single_round_show_what_copies_bring():
    """Nobody would know otherwise: the next round is of another sequence."""
    life = Life()
    for sequence in range(300):
        life.rounds(1, seconds=1.5, tokens=1, whose=[sequence])
        life.now += 1000  # waiting for the next request
        life.paced.finish(sequence)
    assert sum(life.drafted[-200:]) < 20
    for sequence in range(300, 1000):
        life.rounds(1, seconds=1.5, tokens=3, whose=[sequence])
        life.now += 1000
        life.paced.finish(sequence)
    assert sum(life.drafted[-200:]) > 190


def answers(life, count, *, opening, length=40):
    """Answers whose first round brings so many tokens where a copy is asked for; the share of them
    in which one is, and the share of other rounds."""
    first, later = 0.0, 0.0
    for _ in range(count):
        life.number = getattr(life, "number", 0) + 1
        first += life.rounds(1, seconds=1.5, tokens=opening, whose=[life.number]) / count
        later += life.rounds(length - 1, seconds=1.5, tokens=1, whose=[life.number]) / count
        life.paced.finish(life.number)
    return first, later


def test_copies_that_pay_at_the_beginning_of_answers_are_asked_for_there():
    life = Life()
    answers(life, 60, opening=6)
    first, later = answers(life, 100, opening=6)
    assert first > 0.9
    assert later < 0.06


def test_copies_that_do_not_pay_at_the_beginning_of_answers_either_rest_there():
    life = Life()
    first, later = answers(life, 300, opening=1)
    assert first < 0.15
    assert later < 0.06


def test_a_batch_of_which_few_are_new_is_not_at_its_beginning():
    life = Life()
    answers(life, 60, opening=6)
    opening = life.paced._latest.opening
    life.rounds(600, seconds=1.5, tokens=1, whose=range(8))
    for new in range(8, 20):
        life.rounds(20, seconds=1.5, tokens=1, whose=[*range(7), new])
    assert life.paced._latest.opening is not opening
    assert not life.paced._latest.opening.asked.rounds


def test_copies_of_which_one_in_ten_brings_it_all_are_not_given_up():
    life = Life()
    life.rounds(FIRST, seconds=1.2, tokens=1)
    for _ in range(30):
        life.rounds(9, seconds=1.2, tokens=1)
        life.rounds(1, seconds=1.5, tokens=12)
    assert sum(life.drafted) / len(life.drafted) > 0.95


def test_copies_in_sight_that_pay_end_the_rest_of_all():
    life = Life()
    life.rounds(600, seconds=1.4, tokens=1)
    for asked in (0, 1):  # until a trial has begun and ended: now they rest for long
        while life.rounds(1, seconds=1.4, tokens=1) == asked:
            pass
    assert life.rounds(40, seconds=1.4, tokens=4) == 0
    life.copies.copying = True
    life.rounds(LOOK + WOKEN + 3, seconds=1.4, tokens=4)
    life.copies.copying = False
    assert life.rounds(40, seconds=1.4, tokens=4) == 1 - REFRESH / 40  # one look


def test_looking_for_copies_is_for_some_rounds_of_a_rest_alone(monkeypatch):
    life, looked = Life(), []
    monkeypatch.setattr(life.copies, "is_copying", looked.append)
    life.rounds(300, seconds=1.5, tokens=1)
    resting = life.drafted.count(False)
    assert resting / LOOK - 10 < len(looked) <= resting / LOOK


def test_what_thinking_costs_is_shared_among_the_rounds_of_a_rest():
    """Held against those alone in which something is thought over, drafts would seem to pay."""
    life = Life()
    begin = life.paced._rounds.begin

    def begun(whose):
        life.plain = 1.1
        return begin(whose)

    life.paced._rounds.begin = begun
    for _ in range(6000):
        life.plain = 1.0
        life.rounds(1, seconds=1.12, tokens=1.03)
    assert sum(life.drafted[-4000:]) / 4000 < 0.1


@pytest.mark.parametrize(("tokens", "least", "most"), [(1.06, 0.0, 0.12), (1.2, 0.9, 1.0)])
def test_rounds_in_which_prompts_are_read_say_nothing_of_the_others(tokens, least, most):
    """They take as long as a prompt does: of whoever happens to be asked in them, or not."""
    life = Life()
    reading = Budget(8, 0.05 * BUDGET.seconds, reads=True)
    propose, drafted = life.paced.propose, []
    for number in range(6000):
        reads = number % 6 == 0
        life.paced.propose = lambda contexts, budget, reads=reads: propose(
            contexts, reading if reads else budget
        )
        life.plain = 2.5 if reads else 1.0
        share = life.rounds(1, seconds=2.5 if reads else 1.12, tokens=tokens)
        drafted += [share] * (not reads)
    assert least <= sum(drafted[-3000:]) / 3000 <= most


def test_rounds_of_a_rest_are_timed_together():
    life, begun = Life(), []
    begin = life.paced._rounds.begin
    life.paced._rounds.begin = lambda whose: begun.append(0) or begin(whose)
    life.rounds(2000, seconds=1.5, tokens=1)
    assert life.drafted.count(True) < len(begun) < 600


@pytest.mark.parametrize("reflects", [False, True])
def test_nobody_looks_for_copies_of_sequences_that_are_over(reflects):
    life, looked = Life(), []
    life.copies.is_copying = looked.append
    for sequence in range(60):
        looked.clear()
        for _ in range(7):
            life.rounds(1, seconds=1.5, tokens=1, whose=(sequence,))
            if reflects:
                life.paced.update_async()
        assert set(looked) <= {sequence}


def test_copies_in_sight_that_do_not_come_true_rest_too():
    life = Life()
    life.rounds(300, seconds=1.5, tokens=1)
    life.copies.copying = True
    begun = life.now
    life.rounds(3000, seconds=1.5, tokens=1)
    assert 0 < (life.now - begun) / 3000 - 1 < 0.05
    assert life.copies.rounds > 8


@pytest.mark.parametrize("besides", [0.0, 0.3])
def test_guesses_cost_what_their_rounds_take_besides(besides):
    """The table says that a node takes a sixteenth of a step."""
    life = Life()
    seconds = BUDGET.seconds[1] + besides
    life.rounds(300, seconds=seconds, tokens=2)
    assert life.copies.budget.seconds is BUDGET.seconds
    assert life.copies.budget.overhead_seconds == pytest.approx(besides, abs=0.02)


@pytest.mark.parametrize("sequences", [1, 8])
def test_networks_that_add_nothing_to_copies_rest_however_good_they_are(sequences):
    """Copies bring four tokens, and so do all together, which takes longer."""
    life = Life(networks=True)
    contexts = [DraftContext(each, [1, 2], [], tokens=[3]) for each in range(sequences)]
    for context in contexts:
        life.paced.start(context)
    life.rounds(FIRST, seconds=1.0, tokens=1, whose=range(sequences))
    for number in range(3000):
        if number == 1000:
            life.everybody.rounds = life.copies.rounds = 0
        asked, drafts = life.everybody.rounds, life.paced.propose(contexts, BUDGET)
        life.now += 2.0 if life.everybody.rounds > asked else 1.1
        come = [5] * (4 if len(drafts[0]) > 1 else 1)
        life.paced.observe([TargetStep(context.sequence, come) for context in contexts])
    assert life.copies.rounds > 0.95 * 2000
    assert life.everybody.rounds < 0.03 * 2000


def with_networks(*, held_up=1.0, seconds, tokens):
    """Networks' rounds, the first of them held up by something else; how many there were."""
    life = Life(networks=True)
    life.paced.start(DraftContext(0, [1], []))
    life.copies.propose = lambda contexts, budget: [root_only(each.root) for each in contexts]
    contexts = [DraftContext(0, [1, 2], [], tokens=[3])]
    for _ in range(200):
        asked = life.everybody.rounds
        life.paced.propose(contexts, BUDGET)
        drafted = life.everybody.rounds > asked
        life.now += (seconds * (held_up if asked == 0 else 1.0)) if drafted else 1.0
        life.paced.observe([TargetStep(0, [5] * (tokens if drafted else 1))])
    return life.everybody.rounds


def test_networks_that_take_many_times_as_long_are_not_asked_thrice():
    """What a round took is known when the next one is under way."""
    assert with_networks(seconds=6.0, tokens=2) == 2


@pytest.mark.parametrize("held_up", [1.0, 6.0, 200.0])
def test_networks_that_pay_are_asked_even_if_something_held_them_up_at_first(held_up):
    assert with_networks(held_up=held_up, seconds=2.0, tokens=4) > 150


def test_networks_that_rest_rest_in_batches_of_other_sizes_too():
    life = Life(networks=True)
    for sequence in range(4):
        life.paced.start(DraftContext(sequence, [1], []))
    life.rounds(100, seconds=5.0, tokens=1)
    resting, before = life.paced._latest.networks.resting, life.everybody.rounds
    assert resting > LEAVE
    life.rounds(resting, seconds=5.0, tokens=1, whose=range(4))
    assert life.everybody.rounds == before
    life.rounds(1, seconds=5.0, tokens=1, whose=range(4))
    assert life.everybody.rounds == before + 1


def networks_that_rest() -> Life:
    life = Life(networks=True)
    life.paced.start(DraftContext(0, [1], []))
    life.rounds(2, seconds=5.0, tokens=1, whose=range(3))  # what others did does not matter
    life.rounds(300, seconds=5.0, tokens=1)
    while life.paced._latest.networks.resting < LEAVE:
        life.rounds(1, seconds=5.0, tokens=1)
    return life


def test_networks_are_not_told_of_sequences_that_begin_while_they_rest():
    life = networks_that_rest()
    life.paced.finish(0)
    life.everybody.told.clear()
    life.copies.told.clear()
    life.paced.start(DraftContext(1, [1], []))
    life.rounds(2100, seconds=5.0, tokens=1, whose=[1])
    life.paced.finish(1)
    assert not life.everybody.told
    assert {sequence for _, sequence in life.copies.told} == {1}
    life.paced.start(DraftContext(2, [1], []))  # it is time to try again
    assert life.everybody.told == [("start", 2)]


def test_networks_that_seem_to_pay_where_prompts_are_read_are_not_told_if_they_rest_elsewhere():
    """Nearly all rounds of a sequence that begins beside others read nothing."""
    life = Life(networks=True)
    life.paced.start(DraftContext(0, [1], []))
    life.rounds(60, seconds=1.0, tokens=3, reads=True)
    assert life.everybody.rounds > 20
    life.rounds(300, seconds=5.0, tokens=1)
    assert life.paced._latest.networks.resting > LEAVE
    life.everybody.told.clear()
    life.rounds(1, seconds=1.0, tokens=3, reads=True)
    assert not life.paced._latest.networks.resting
    life.paced.start(DraftContext(1, [1], []))
    assert not life.everybody.told


def test_networks_that_rest_for_long_are_not_told_of_those_under_way_either():
    life = Life(networks=True)
    life.paced.start(DraftContext(0, [1], []))
    while ("leave", 0) not in life.everybody.told:
        assert life.paced._latest is None or life.paced._latest.networks.resting < LET_GO
        life.rounds(1, seconds=5.0, tokens=1)
    shown = len(life.everybody.told)
    assert life.everybody.told == [("start", 0), *[("step", 0)] * (shown - 2), ("leave", 0)]
    life.rounds(50, seconds=5.0, tokens=1)
    life.paced.finish(0)
    assert len(life.everybody.told) == shown
    steps = len(life.drafted) - (shown - 2)
    assert life.copies.told == [("step", 0)] * steps + [("finish", 0)]


def test_networks_are_not_told_of_prompts_that_they_have_no_say_in():
    copies, everybody = Asked(), Asked()
    paced = Paced(copies, lambda: 0.0, everybody, least=3)
    for sequence, prompt in enumerate(([1, 2], [1, 2, 3])):
        paced.start(DraftContext(sequence, prompt, []))
    assert (copies.told, everybody.told) == ([("start", 0)], [("start", 1)])


@pytest.mark.parametrize("reflects", [False, True])
def test_what_was_thought_over_before_need_not_be_when_asked(reflects, monkeypatch):
    life, thought = Life(), []
    reflect = life.paced.reflect
    monkeypatch.setattr(life.paced, "reflect", lambda: thought.append(0) or reflect())
    propose = life.paced.propose

    def proposed(contexts, budget):
        before = len(thought)
        trees = propose(contexts, budget)
        life.asked_then += len(thought) - before
        if reflects:
            reflect()
        return trees

    life.asked_then = 0
    monkeypatch.setattr(life.paced, "propose", proposed)
    life.rounds(60, seconds=1.2, tokens=2)
    assert life.asked_then == (1 if reflects else 60)
    looks = [False] * REFRESH
    drafted = [*[False] * FIRST, *[True] * EARLY, *looks, *[True] * 2 * EARLY, *looks, *[True] * 60]
    assert life.drafted == drafted[:60]


def test_in_a_round_of_both_everybody_guesses_for_those_he_knows_of():
    life = Life(networks=True, least=2)
    prompts = [1, 2], [1]  # the second is too short for networks
    for sequence, prompt in enumerate(prompts):
        life.paced.start(DraftContext(sequence, prompt, []))
    contexts = [DraftContext(each, prompts[each], [], tokens=[each]) for each in (1, 0)]
    both = set()
    for _ in range(50):
        before = life.copies.rounds, life.everybody.rounds
        trees = life.paced.propose(contexts, BUDGET)
        both.add((life.copies.rounds - before[0], life.everybody.rounds - before[1]))
        assert [tree.tokens[0] for tree in trees] == [1, 0]
        life.now += 1.0
        life.paced.observe([TargetStep(each, [5]) for each in (1, 0)])
    assert (1, 1) in both


def test_batches_of_different_sizes_are_told_apart():
    life = Life()
    life.rounds(400, seconds=1.5, tokens=1, whose=range(8))
    assert life.rounds(8, seconds=1.5, tokens=1, whose=range(8)) == 0
    life.rounds(FIRST, seconds=1.2, tokens=3)
    assert life.rounds(50, seconds=1.2, tokens=3) == 1 - REFRESH / 50  # one look


def test_what_rests_in_a_batch_rests_as_long_in_a_smaller_one_once_it_does_not_pay_there():
    life = Life()
    life.rounds(600, seconds=1.5, tokens=1, whose=range(8))
    assert life.rounds(200, seconds=1.5, tokens=1, whose=range(4)) < 0.06
    assert life.rounds(FIRST, seconds=1.2, tokens=3, whose=range(2)) == 0
    assert life.rounds(50, seconds=1.2, tokens=3, whose=range(2)) == 1 - REFRESH / 50  # one look


@pytest.mark.parametrize(("before", "now"), [(2, 3), (3, 2), (4, 7), (7, 4)])
def test_batches_of_about_the_same_size_are_held_against_each_other_by_sequence(before, now):
    life = Life()
    life.rounds(FIRST + 1, seconds=1.2, tokens=1, whose=range(before))
    assert life.rounds(300, seconds=1.2, tokens=1, whose=range(now)) < 0.2
    life = Life()
    life.rounds(FIRST + 1, seconds=1.2, tokens=2, whose=range(before))
    assert life.rounds(100, seconds=1.2, tokens=2, whose=range(now)) > 0.95


def test_what_is_drawn_is_told_apart_from_what_is_not():
    life = Life()
    life.rounds(400, seconds=1.5, tokens=1, temperature=1.0)
    life.rounds(FIRST, seconds=1.2, tokens=3)
    assert life.rounds(50, seconds=1.2, tokens=3) == 1 - REFRESH / 50  # one look
    assert life.rounds(8, seconds=1.5, tokens=1, temperature=1.0) == 0


def test_a_round_counts_for_its_own_number_of_sequences():
    life = Life()
    for _ in range(40):  # alone drafts pay, for two they do not
        life.rounds(3, seconds=1.0, tokens=4)
        life.rounds(3, seconds=8.0, tokens=1, whose=(0, 1))
    assert life.rounds(9, seconds=1.0, tokens=4) == pytest.approx(1 - REFRESH / 9)  # one look
    assert life.rounds(9, seconds=8.0, tokens=1, whose=(0, 1)) < 0.5


def test_others_rounds_and_pauses_do_not_count():
    """What happened between rounds of different sequences is not known."""
    life = Life()
    life.rounds(FIRST + 1, seconds=1.2, tokens=2)
    for sequence in range(1, 40):
        life.now += 1000
        life.rounds(1, seconds=1.2, tokens=1, whose=[sequence])
    assert life.rounds(40, seconds=1.2, tokens=2) == 1 - REFRESH / 40  # one look


def test_whoever_is_asked_has_been_shown_everything(monkeypatch):
    life, shown = Life(), []
    propose = life.copies.propose

    def proposed(contexts, budget):
        shown.append(len(life.copies.told) == len(life.drafted))
        return propose(contexts, budget)

    monkeypatch.setattr(life.copies, "propose", proposed)
    life.rounds(900, seconds=1.5, tokens=1)
    assert 20 < len(shown) < 200
    assert all(shown)
    life.paced.finish(0)
    assert len(life.copies.told) == 901


@pytest.mark.parametrize("networks", [True, False])
def test_drafters_are_told_everything(networks):
    life = Life(networks=networks)
    life.paced.start(DraftContext(0, [1], []))
    life.rounds(2, seconds=1.0, tokens=1)
    life.paced.finish(0)
    told = life.everybody if networks else life.copies
    assert told.told == [("start", 0), ("step", 0), ("step", 0), ("finish", 0)]
    assert life.copies.rounds == life.everybody.rounds == 0
