from fedbench.core import Component, Defense, Params, hookimpl
from pydantic import Field

class UpdateNoise(Defense):
    """Gaussian noise on each member's uploaded update."""
    class Params(Params):
        sigma: float = Field(0.01, ge=0, description="standard deviation, in units of the parameters")

    def protect(self, update, ctx):                     # update: [P] float tensor
        return update + self.params.sigma * ctx.randn_like(update)

@hookimpl
def fedbench_defenses():
    yield Component("update-noise", "my_package:UpdateNoise", "Gaussian noise on updates")
