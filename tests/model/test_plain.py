"""The plain numbers are those of the enums."""

from wheelsched.model import nouns, plain

ENUMS = {"JOB": nouns.JobState, "RUN": nouns.RunState, "EVENT": nouns.Event, "OUTCOME": nouns.Outcome, "TRIGGER": nouns.Trigger,
         "DISPOSITION": nouns.Disposition, "REASON": nouns.Reason}


def test_each_plain_number_is_that_of_the_member_it_is_named_after():
    names = [name for name in vars(plain) if name.isupper()]
    assert names
    for name in names:
        kind, _, member = name.partition("_")
        number = getattr(plain, name)
        assert number == ENUMS[kind][member], name
        assert type(number) is int, f"{name}: numpy would ask the class of an enum's member"
