"""Where the trained model samples: vLLM in this process or on servers, and how it gets new weights."""
