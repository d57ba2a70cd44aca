"""A pipeline between Kafka topics with one rule broken at a time: the simulator must find each (J6, J7, J8, J11,
J14)."""

from __future__ import annotations

from typing import Final

from tests.broken import Broken
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


def _mutant(broken: Broken, faults: Faults, random_max: int = 12, first_seed: int = 1) -> Mutant:
    name, scenario = f"kafka: {broken.rule}", Short if faults is NONE else KafkaScenario
    return Mutant(name, scenario, faults, None, random_max, first_seed=first_seed, words=(broken,))


KAFKA_MUTANTS = [
    _mutant(
        Broken("what is there is written again", is_to_be_written, "transaction > marker", "True"), KILLS
    ),
    _mutant(
        Broken(
            "a batch is empty",
            KeyedOutput._write,
            "if batch is None or not rows:",
            "if batch is None and self._fenced() < t:\n"
            "            self._sink.write(t, Messages((), self._content.encode, str, _any_fits))\n"
            "        if batch is None or not rows:",
        ),
        NONE,
    ),
    _mutant(
        Broken("a failure leaves the marker known", KeyedOutput._write, "self._marker = None", "pass"), LOST
    ),
    _mutant(
        Broken(
            "nobody is fenced",
            KafkaSink._config,
            '"transactional.id": f"tracelake-{self._id}"',
            '"transactional.id": f"tracelake-{self._id}-{time.monotonic()}"',
        ),
        KILLS,
    ),
    _mutant(
        Broken(
            "the marker is read before others are fenced",
            KafkaSink.fence,
            'with self._failing("cannot begin to write"):',
            "self._last = self._last_marker()\n    self._last_marker = lambda: self._last\n"
            '    with self._failing("cannot begin to write"):',
        ),
        KILLS,
    ),
    _mutant(
        Broken(
            "rows and marker are two transactions",
            KafkaSink.write,
            "self._produce(self._markers, encode(marker), headers)",
            "self._producer.commit_transaction(1); self._producer.begin_transaction(); "
            "self._produce(self._markers, encode(marker), headers)",
        ),
        KILLS,
    ),
    _mutant(
        Broken(
            "what is lost is passed over",
            Cluster.frames,
            "yield removed_frame(position, _lost(name, position, lost))",
            "pass",
        ),
        NONE,
    ),
    _mutant(
        Broken(
            "what is taken is looked at again",
            KafkaSource.judge,
            "GoneInput() if protocol.has_any(busy, start, stop) else NewInputs()",
            "NewInputs()",
        ),
        KILLS,
    ),
    _mutant(
        Broken(
            "what was taken before is forgotten",
            ConsumerOffsets.take,
            "united([*before.taken, *new])",
            "united(new)",
        ),
        NONE,
    ),
    _mutant(
        Broken(
            "what is held is looked at again",
            KafkaWatch._of_partition,
            "protocol.Log(position.taken, holding, ends.low, ends.end)",
            "protocol.Log(position.taken, (), ends.low, ends.end)",
        ),
        NONE,
        12,
        7,
    ),
]
