"""windtunnel: plan, check, rehearse, train, evaluate and serve language models on rented GPUs."""

__version__ = "0.1.0"
