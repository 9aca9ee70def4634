"""The equations of learning as pure functions of tensors. Imports torch only."""
