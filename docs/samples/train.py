from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

arguments = TrainingArguments(output_dir="out", bf16=True, gradient_checkpointing=True)
model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B")
Trainer(model=model, args=arguments, train_dataset=[]).train()
