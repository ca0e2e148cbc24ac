"""The front end: Tensor, tape, capture, guards, the driver."""
