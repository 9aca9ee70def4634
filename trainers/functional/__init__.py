"""The equations of learning as pure functions of tensors. Imports torch only.

Axis legend: `_B` row of a batch (an episode, or one of its rows), `_G` group member, `_K` turn, `_P` pair, `_T`
token, `_V` vocabulary. A mask is bool or 0/1, true at the tokens that the policy wrote. Values at masked places are
never read. Computations use float32 (float64 stays float64). A reward of NaN means an episode without a score.
"""
