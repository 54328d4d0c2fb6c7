"""Array types that carry their shape in the annotation: ``Float[Tensor, "l r"]``.

The tests check them at run time with jaxtyping. An installed linmem does not need jaxtyping: without it
the annotations are the bare array type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class Float:
            """Stand-in that forgets the shape."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Int = Float

__all__ = ["Bool", "Float", "Int"]
