"""Whether a device takes a model, node by node, and why not."""

from detent.device_check.check import check, check_graph
from detent.device_check.findings import DeviceCheck, Finding, NodePlace

__all__ = ["DeviceCheck", "Finding", "NodePlace", "check", "check_graph"]
