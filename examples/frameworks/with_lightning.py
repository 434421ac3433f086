"""A network trained with Lightning on the allfold backend."""

import os

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy

processes = int(os.environ.get("WORLD_SIZE", "2"))  # a launcher's number; without one, Lightning starts two


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        self.losses = []

    def training_step(self, batch):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(inputs), targets)
        self.losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        loss = self.all_gather(torch.stack(self.losses)).mean()
        self.losses.clear()
        if self.global_rank == 0:
            print(f"epoch {self.current_epoch + 1}: loss {loss:.4f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


lightning.seed_everything(0, verbose=False)
inputs = torch.randn(512, 16)
data = torch.utils.data.TensorDataset(inputs, inputs.sin().sum(dim=1, keepdim=True))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=processes,
    strategy=DDPStrategy(process_group_backend="allfold"),
    max_epochs=5,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Network(), torch.utils.data.DataLoader(data, batch_size=64 // processes, shuffle=True))
if trainer.is_global_zero:
    print(f"{trainer.world_size} processes on {dist.get_backend()}")
dist.destroy_process_group()
