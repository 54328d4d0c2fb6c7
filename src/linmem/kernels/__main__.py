"""``python -m linmem.kernels`` says which kernels are used, and why."""

import torch

from linmem.kernels import available

if __name__ == "__main__":
    found = available()
    print(f"kernels: {found.used}. {found.why}")
    print(f"built:   {', '.join(found.built) or 'none'}")
    print(f"threads: {torch.get_num_threads()}, as torch.get_num_threads() says")
