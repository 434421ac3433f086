"""A network trained with accelerate on the allfold backend."""

import torch
import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration

dist.init_process_group("allfold")  # before Accelerator: it uses a group that is there already
# The same batches in the same order, however many processes share them.
batches = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)
accelerator = Accelerator(cpu=True, dataloader_config=batches)

torch.manual_seed(0)
inputs = torch.randn(512, 16)
targets = inputs.sin().sum(dim=1, keepdim=True)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=64, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(5):
    losses = []
    for some_inputs, some_targets in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(some_inputs), some_targets)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), "mean"))
    accelerator.print(f"epoch {epoch + 1}: loss {torch.stack(losses).mean():.4f}")

accelerator.print(f"{accelerator.num_processes} processes on {dist.get_backend()}")
accelerator.end_training()  # destroys the group
