"""Text environments that are real Gymnasium environments, and a collector that plays them with a language model."""
