"""Metrics of torchmetrics over the predictions of all ranks, on the allfold backend."""

import torch
import torch.distributed as dist
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassConfusionMatrix

dist.init_process_group("allfold")
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)  # the same predictions everywhere; every rank takes its share
labels = torch.randint(3, (1000,))
scores = (torch.nn.functional.one_hot(labels, 3) + torch.randn(1000, 3)).softmax(dim=1)
ends = [1000 * (one + 1) ** 2 // ranks**2 for one in range(ranks)]  # shares of different lengths
mine = torch.arange(0 if rank == 0 else ends[rank - 1], ends[rank])

metrics = MetricCollection(
    {
        "accuracy": MulticlassAccuracy(num_classes=3),
        "confusion": MulticlassConfusionMatrix(num_classes=3),
        "area": MulticlassAUROC(num_classes=3),  # keeps all scores, of which every rank has another number
    }
)
for some in mine.split(64):
    metrics.update(scores[some], labels[some])

found = metrics.compute()  # reduces and gathers over all ranks
if rank == 0:
    print(f"accuracy {found['accuracy']:.6f}, area under the curve {found['area']:.6f}")
    print(f"confusion {found['confusion'].tolist()}")
    print(f"{ranks} processes on {dist.get_backend()}")
dist.destroy_process_group()
