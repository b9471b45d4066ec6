"""Serving: what senders send, and the supervised fleets of processes that send it."""

from tensorcom.serving.fleet import Fleet, FleetEvent
from tensorcom.serving.worker import StopFlag, Worker

__all__ = ["Fleet", "FleetEvent", "StopFlag", "Worker"]
