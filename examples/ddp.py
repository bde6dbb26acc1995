"""Several processes: the same loop under torchrun, with DistributedDataParallel. Long-tailed digits, a few seconds.

    torchrun --nproc_per_node 2 examples/ddp.py

Each process has its own images. With contrast="global" views are gathered with their gradient, and all processes
together compute what one would; with "local" (as in the paper's released code) only the memory is shared.
"""

import os

import torch
import torch.distributed as dist
from own_loop import BATCH, Net, long_tailed_digits, view
from torch.nn.parallel import DistributedDataParallel

from gpaco import GPaCoLoss


def main() -> None:
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same start everywhere
    images, labels, test_images, test_labels = (x.to(device) for x in long_tailed_digits())
    net = Net().to(device)
    criterion = GPaCoLoss(
        10, class_counts=labels.bincount(), prior="unbiased", memory=256, dim=32, contrast="global"
    ).to(device)
    order = torch.randperm(len(images), device=device)
    first = order[rank:BATCH:world]
    logits, embeddings = net(images[first].repeat(2, 1, 1, 1))
    criterion.balance(net.centers, logits, embeddings, labels[first].repeat(2))
    model = DistributedDataParallel(net)
    torch.manual_seed(rank)  # from here on each process draws its own views
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    for epoch in range(20):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch)).to(device)
        for batch in order.split(BATCH):
            mine = batch[rank::world]  # numbers of images may differ between processes
            loss = criterion(*model(torch.cat([view(images[mine]), view(images[mine])])), labels[mine].repeat(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    held = [torch.zeros_like(criterion.memory.embeddings) for _ in range(world)]
    dist.all_gather(held, criterion.memory.embeddings)
    same = all(torch.equal(memory, held[0]) for memory in held)
    with torch.no_grad():
        accuracy = (net(test_images)[0].argmax(1) == test_labels).float().mean()
    if rank == 0:
        print(f"{world} processes, loss {loss.item():.2f}, test accuracy {100 * accuracy:.1f}%")
        print(f"the same memory of {len(criterion.memory)} rows everywhere: {'yes' if same else 'NO'}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
