"""A pipeline between Kafka topics with one rule broken at a time: the simulator must find each (J6, J7, J8, J11,
J14)."""

from __future__ import annotations

import uuid
from typing import Final

from tests.mutants.mutation import Mutation, drop, rewrite
from tests.simulation.kafka import KafkaScenario
from tests.simulation.mutants import Mutant
from tracelake.pipeline.outputs.configured import KafkaSink
from tracelake.pipeline.outputs.external import KeyedOutput
from tracelake.pipeline.protocol import is_to_be_written
from tracelake.pipeline.sources.kafka import Cluster, ConsumerOffsets, KafkaSource, KafkaWatch
from tracelake.testing import Faults

KILLS: Final = Faults(kills=6, delays=6)
LOST: Final = Faults(lost=8, late=4, delays=6)
NONE: Final = Faults()
ALL: Final = Faults(kills=3, lost=6, late=2, delays=3, stalls=1, partitions=1)


class Short(KafkaScenario):
    """The same scenario with a lower limit for endless runs, because a run without faults is short."""

    steps_max = 5_000


def _mutant(broken: Mutation, faults: Faults, random_max: int = 12, first_seed: int = 1) -> Mutant:
    name, scenario = f"kafka: {broken.rule}", Short if faults is NONE else KafkaScenario
    return Mutant(name, scenario, faults, None, random_max, first_seed=first_seed, words=(broken,))


def _begin_again(sink: KafkaSink) -> None:
    sink._producer.commit_transaction(1)
    sink._producer.begin_transaction()


KAFKA_MUTANTS = [
    _mutant(Mutation("what is there is written again", is_to_be_written, rewrite("a > b", "True")), KILLS),
    _mutant(Mutation("a failure leaves the marker known", KeyedOutput._write, drop("_ = None")), LOST),
    _mutant(
        Mutation(
            "nobody is fenced",
            KafkaSink._config,
            rewrite(
                "_1(_2, **{_3: _4, _5: _6, _7: _8, _9: _10, _11: _12, _13: _14})",
                "_1(_2, **{_3: name(), _5: _6, _7: _8, _9: _10, _11: _12, _13: _14})",
                name=lambda: uuid.uuid4().hex,
            ),
        ),
        KILLS,
    ),
    _mutant(
        Mutation(
            "the marker is read before others are fenced",
            KafkaSink.fence,
            rewrite("with _1: ...\nself.a = self.b()", "self.a = self.b()\nwith _1: ..."),
        ),
        KILLS,
    ),
    _mutant(
        Mutation(
            "rows and marker are two transactions",
            KafkaSink.write,
            rewrite("self.a(self.b, c(d), e)", "again(self)\nself.a(self.b, c(d), e)", again=_begin_again),
        ),
        KILLS,
    ),
    _mutant(
        Mutation(
            "what is lost is passed over",
            Cluster.frames,
            rewrite("_1 = _2\n_", "_1 = _2\npass"),
        ),
        NONE,
    ),
    _mutant(
        Mutation(
            "what is taken is looked at again",
            KafkaSource.judge,
            rewrite("return _ if _ else _1", "return _1"),
        ),
        KILLS,
    ),
    _mutant(
        Mutation(
            "what was taken before is forgotten",
            ConsumerOffsets.take,
            rewrite("[*_, *_1]", "_1"),
        ),
        NONE,
    ),
    _mutant(
        Mutation(
            "what is held is looked at again",
            KafkaWatch._of_partition,
            rewrite("_1(_2, _, _3, _4)", "_1(_2, (), _3, _4)"),
        ),
        NONE,
        12,
        7,
    ),
]
