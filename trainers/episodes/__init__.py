"""Episodes as training data: items, generations, rewards, batches, advantages, and the record of a training."""
