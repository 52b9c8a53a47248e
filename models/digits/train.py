"""Trains the network of `models/digits.ein` and writes its weights and held-out images beside this file.

    python models/digits/train.py        # needs scikit-learn; takes a few seconds

The data are the UCI "Optical Recognition of Handwritten Digits" test images (E. Alpaydin and C. Kaynak, 1998, licence
CC BY 4.0) as scikit-learn carries them: 1797 images of 8 x 8 pixels with values 0 to 16.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = Path(__file__).parent
HELD_OUT = 359


def main() -> None:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    seen, held_out, seen_labels, held_out_labels = train_test_split(
        images, labels, test_size=HELD_OUT, random_state=7, stratify=labels
    )
    network = MLPClassifier((94, 47), alpha=1e-2, max_iter=600, random_state=7).fit(seen, seen_labels)
    weights = {}
    for layer, (matrix, bias) in enumerate(zip(network.coefs_, network.intercepts_, strict=True), start=1):
        weights[f"w{layer}"] = np.ascontiguousarray(matrix, dtype=np.float32)
        weights[f"b{layer}"] = bias.astype(np.float32)
    save_file(weights, HERE / "weights.safetensors")
    np.save(HERE / "images.npy", held_out)
    np.save(HERE / "labels.npy", held_out_labels.astype(np.int64))
    print(f"accuracy on {HELD_OUT} held-out images: {network.score(held_out, held_out_labels):.4f}")


if __name__ == "__main__":
    main()
