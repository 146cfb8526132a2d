"""What do the letters mean? The one legend of axes and array types.

`b` batch, `h` head, `i` query position, `j` key position, `d` compared feature, `e` carried feature,
`n` tokens of a run, `m` of a memory, `w` width of the model. `#` before a letter: the axis may also be 1.
"""

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

Vectors = Float[Tensor, "b n w"]
Memory = Float[Tensor, "b m _"]
Ids = Int[Tensor, "b n"]
Logits = Float[Tensor, "b n vocab"]

Query = Float[Tensor, "b h i d"]
Key = Float[Tensor, "b h j d"]
Value = Float[Tensor, "b h j e"]
Heads = Float[Tensor, "b h i e"]
Scores = Float[Tensor, "#b #h i j"]
Weights = Float[Tensor, "b h i j"]
Bias = Float[Tensor, "#b #h i j"]
Allowed = Bool[Tensor, "#b #h i j"]

Places = Int[Tensor, "#b n"]
Mark = Shaped[Tensor, "#b n"]
Steps = Int[Tensor, "#b 1 i j"]

# A score may compare nothing: then its queries or keys are zero features wide, and each has a width of its own.
AnyQuery = Float[Tensor, "b h i _"]
AnyKey = Float[Tensor, "b h j _"]
