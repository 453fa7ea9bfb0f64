"""The tags of messages, as they are on the wire: a class may get another name, its tag may not.

Events have theirs pinned by the golden journals (``tests/unit/dispatcher/golden``).
"""

from typing import get_args

from millrace.protocol import data_messages, messages

TAGS = {
    "ToWorker": {
        "Audience",
        "DropLeftovers",
        "BlocksKnown",
        "CacheServersKnown",
        "ChooseSharding",
        "CloseJob",
        "ForgetTasks",
        "JobFailed",
        "LeaseTask",
        "ListSources",
        "MeasureStore",
        "OpenJob",
        "OutputsReceived",
        "RevokeTask",
        "StopWorker",
        "TaskGoOn",
        "WorkerWelcome",
    },
    "FromWorker": {
        "CacheUsed",
        "JobUnsendable",
        "LeftoversLost",
        "SamplersDrew",
        "ShardingChosen",
        "SourcesFailed",
        "SourcesListed",
        "StoreMeasured",
        "TaskAt",
        "TaskFailed",
        "TaskFinished",
        "TaskReturned",
        "WorkerHello",
        "WorkerLeaving",
        "WorkerReport",
    },
    "ToConsumer": {
        "EpochBegun",
        "EpochEnds",
        "TasksGone",
        "JobFailed",
        "JobJoined",
        "Notice",
        "ReadTasks",
        "Resumed",
        "StepsReady",
        "WeightsSet",
    },
    "FromConsumer": {
        "BeginEpoch",
        "ConsumerReport",
        "JoinJob",
        "LeaveJob",
        "SetWeights",
    },
    "ToServer": {
        "Credit",
        "FetchLeftovers",
        "Open",
        "Read",
        "Received",
    },
    "ToReader": {
        "Delivery",
        "Leftovers",
        "Short",
        "Skipped",
    },
}


def test_tags_are_what_they_were():
    unions = {
        "ToWorker": messages.ToWorker,
        "FromWorker": messages.FromWorker,
        "ToConsumer": messages.ToConsumer,
        "FromConsumer": messages.FromConsumer,
        "ToServer": data_messages.ToServer,
        "ToReader": data_messages.ToReader,
    }
    assert {name: {kind.__struct_config__.tag for kind in get_args(union)} for name, union in unions.items()} == TAGS
