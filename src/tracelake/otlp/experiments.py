"""The experiment of MLflow that spans belong to, as an attribute of their resource."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

EXPERIMENT: Final = "mlflow.experimentId"


def with_experiment(payload: bytes, experiment: str) -> bytes:
    """Return a protobuf TracesData whose resources name the experiment; those that name one keep it.

    What cannot be parsed comes back as it is: decoding it says what is wrong.
    """
    try:
        traces = TracesData.FromString(payload)
    except DecodeError:
        return payload
    for group in traces.resource_spans:
        if all(attribute.key != EXPERIMENT for attribute in group.resource.attributes):
            group.resource.attributes.add(key=EXPERIMENT).value.string_value = experiment
    return traces.SerializeToString()
