# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy", "tritonclient[grpc]"]
# ///
"""A KServe v2 client: any tool that speaks to Triton can ask a logitsieve server.

pip install -c constraints.txt -e '.[kserve]'
logitsieve serve --model-repository models
python examples/kserve_infer.py localhost:50051 lm
"""

import sys

import numpy as np
import tritonclient.grpc as triton


def main(address: str, model: str) -> None:
    """Ask for the five best ids of four contexts."""
    client = triton.InferenceServerClient(address)
    try:
        inputs = client.get_model_metadata(model).inputs
    except triton.InferenceServerException as error:
        if error.status() == "StatusCode.UNIMPLEMENTED":
            sys.exit(f"{address} answers no KServe: it needs the extra kserve")
        raise
    [hidden_input] = [entry for entry in inputs if entry.name == "hidden_states"]
    dim = int(hidden_input.shape[-1])
    hidden_states = np.random.default_rng(0).standard_normal((4, dim)).astype(np.float32)

    rows = triton.InferInput("hidden_states", hidden_states.shape, "FP32")
    rows.set_data_from_numpy(hidden_states)
    k = triton.InferInput("k", [1], "INT32")
    k.set_data_from_numpy(np.array([5], np.int32))
    result = client.infer(model, [rows, k], parameters={"head": "sketch"})
    print(result.as_numpy("ids"))
    print("proven", result.as_numpy("proven").tolist())
    client.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
