"""Write a GGUF file's weights in 32 or 16 bits, to compare llama.cpp at equal precision.

Run with the interpreter that has llama-cpp-python: `llama_convert.py IN.gguf OUT.gguf float16`.
"""

import argparse
import ctypes


def main() -> None:
    """Convert with llama.cpp's own quantiser; the values are those of the input file."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("source")
    options.add_argument("target")
    options.add_argument("dtype", choices=("float32", "float16", "bfloat16"))
    chosen = options.parse_args()
    import llama_cpp

    params = llama_cpp.llama_model_quantize_default_params()
    params.allow_requantize = True
    params.ftype = {
        "float32": llama_cpp.LLAMA_FTYPE_ALL_F32,
        "float16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
        "bfloat16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
    }[chosen.dtype]
    code = llama_cpp.llama_model_quantize(
        chosen.source.encode(), chosen.target.encode(), ctypes.byref(params)
    )
    if code != 0:
        raise SystemExit(f"llama.cpp could not convert {chosen.source} (code {code})")


if __name__ == "__main__":
    main()
