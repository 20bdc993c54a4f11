"""Products with the experts that a step's nodes chose, over panels."""

from numba import njit, prange

from graft.kernels.products import multiply_share


@njit(parallel=True, cache=True, boundscheck=False, nogil=True)
def multiply_experts(x, experts, bounds, weights, scale, y, threads):  # noqa: ANN001, ANN201, PLR0913
    """Rows bounds[i] .. bounds[i + 1] of y = those of x @ weights[experts[i]], the columns shared
    between the threads; `scale` is empty."""
    for t in prange(threads):
        for i in range(experts.shape[0]):
            rows = slice(bounds[i], bounds[i + 1])
            multiply_share(x[rows], weights[experts[i]], scale, t, threads, y[rows])
