"""What is wrong with the node's GPUs: what NVML shows of them, what was learned before, and time. Pure."""
