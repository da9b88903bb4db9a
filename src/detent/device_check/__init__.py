"""Whether a device takes a model, node by node, and why not."""

from detent.device_check.check import check, check_graph
from detent.results.checked import DeviceCheck, Finding, NodePlace

__all__ = ["DeviceCheck", "Finding", "NodePlace", "check", "check_graph"]
