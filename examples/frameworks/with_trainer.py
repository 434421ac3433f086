"""A small language model trained with the Trainer of transformers on the allfold backend."""

import tempfile

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

dist.init_process_group("allfold")  # before TrainingArguments: accelerate, below it, uses a group that is there already
set_seed(0)

WORDS, LENGTH = 17, 12
first = torch.randint(WORDS, (256, 1))
sentences = (first + 3 * torch.arange(LENGTH)) % WORDS  # every word follows from the one before it
data = [{"input_ids": sentence, "labels": sentence} for sentence in sentences]
sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
# Dropout is random per process: without it, the result does not depend on the number of processes.
quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(**sizes, **quiet))

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=32 // dist.get_world_size(),
        num_train_epochs=5,
        learning_rate=1e-2,
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()

if dist.get_rank() == 0:
    print(f"{dist.get_world_size()} processes on {dist.get_backend()}")
dist.destroy_process_group()
