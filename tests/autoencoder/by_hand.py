"""Xi in full, and what the paper says to do with it: the independent reference of the autoencoder's tests."""

import numpy as np


def xi(sequences, forgetting=1.0):
    """Rows: for every frame, everything its sequence showed so far, newest first, discounted."""
    frames, longest, features = sum(map(len, sequences)), max(map(len, sequences)), sequences[0].shape[1]
    matrix = np.zeros((frames, longest, features))
    row = 0
    for sequence in sequences:
        for t in range(len(sequence)):
            for lag in range(t + 1):
                matrix[row, lag] = forgetting**lag * sequence[t - lag]
            row += 1
    return matrix.reshape(frames, -1)


def rank(matrix):
    s = np.linalg.svd(matrix, compute_uv=False)
    return int((s > 1e-13 * s[0]).sum())


def encoder(sequences, p, forgetting=1.0):
    """A = UᵀP and B = λ UᵀRU from the singular value decomposition of Xi."""
    _, s, Ut = np.linalg.svd(xi(sequences, forgetting), full_matrices=False)
    U, a = Ut[:p].T, sequences[0].shape[1]
    R = np.eye(len(U), k=-a)
    return U[:a].T, forgetting * U.T @ R @ U, s[:p]


def encode(A, B, sequence):
    memories = [np.zeros(len(B))]
    for x in sequence:
        memories.append(A @ x + B @ memories[-1])
    return np.array(memories[1:])


def decode(A, B, memory, steps, forgetting=1.0):
    """Oldest frame first."""
    frames = []
    for _ in range(steps):
        frames.append(A.T @ memory)
        memory = B.T @ memory / forgetting**2
    return np.array(frames[::-1])


def error(A, B, sequences, forgetting=1.0):
    """Relative error when final memories decode their whole sequences."""
    wrong = sum(np.square(decode(A, B, encode(A, B, x)[-1], len(x), forgetting) - x).sum() for x in sequences)
    return np.sqrt(wrong / sum(np.square(x).sum() for x in sequences))


def ragged(seed, features=None, sequences=None, longest=12):
    """Random ragged sequences."""
    rng = np.random.default_rng(seed)
    features = features or int(rng.integers(1, 5))
    n = sequences or int(rng.integers(1, 6))
    return [rng.standard_normal((int(rng.integers(1, longest + 1)), features)) for _ in range(n)]
