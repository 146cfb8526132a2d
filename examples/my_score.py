from einops import einsum
from torch.nn import functional as F


def soft_cosine(q, k, at, *, temperature: float = 0.2):
    """s_ij = cos(q_i, k_j) / τ, less a little for every step back."""
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return einsum(q, k, "b h i d, b h j d -> b h i j") / temperature - 0.1 * at.distance()
