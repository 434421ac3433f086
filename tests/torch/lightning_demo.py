"""Lightning's own demo model and data, trained by its Trainer; `recorded.py` checks, records and replays this."""

import lightning
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

lightning.seed_everything(1, verbose=False)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(BoringModel(), BoringDataModule())
