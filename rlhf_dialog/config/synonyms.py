"""The names of the keys of TRL, OpenRLHF and DeepSpeed-Chat here, what to do if there is no such key, and OpenRL's idle keys."""

import re
from collections.abc import Collection

RENAMED = {
    "activation_checkpointing": "gradient_checkpointing actor_gradient_checkpointing critic_gradient_checkpointing",
    "clip_param": "cliprange eps_clip clip_range epsilon",
    "critic_path": "critic_model_name_or_path critic_pretrain value_model",
    "critic_lr": "critic_learning_rate critic_lora_learning_rate value_learning_rate",
    "entropy_coef": "entropy_loss_coef ent_coef",
    "env.args.data_path": "dataset_name dataset query_dataset prompt_data train_dataset",
    "env.args.tokenizer_path": "tokenizer_name tokenizer_name_or_path tokenizer",
    "eval_interval": "eval_steps",
    "experiment_name": "exp_name run_name wandb_run_name task_name",
    "gae_lambda": "lam lambd gae_lam",
    "keep_checkpoints": "save_total_limit max_ckpt_num",
    "kl_coef": "init_kl_coef beta",
    "kl_target": "target target_kl",
    "log_interval": "logging_steps",
    "lora_target_modules": "target_modules actor_lora_module_name critic_lora_module_name",
    "lr": "learning_rate actor_learning_rate actor_lora_learning_rate",
    "max_grad_norm": "max_norm",
    "max_iterations": "num_total_batches",
    "max_new_tokens": "response_length generate_max_len max_answer_seq_len max_completion_length max_response_length",
    "max_prompt_length": "prompt_max_len max_prompt_seq_len max_prompt_len",
    "model_path": "sft_model_path model_name_or_path model_name model pretrain actor_model_name_or_path",
    "num_mini_batch": "num_mini_batches",
    "num_responses_per_prompt": "n_samples_per_prompt num_generations",
    "opti_eps": "adam_epsilon adam_eps",
    "packing": "packing_samples",
    "per_device_microbatch_size": "micro_train_batch_size micro_batch_size",
    "per_device_rollout_size": "local_rollout_forward_batch_size micro_rollout_batch_size vllm_generate_batch_size "
    "per_device_generation_batch_size",
    "ppo_epoch": "num_ppo_epochs ppo_epochs max_epochs",
    "push_to_hub": "hub_model_id",
    "ref_model": "ref_model_path ref_model_name_or_path",
    "rollout_batch_size": "batch_size",
    "stop_token_ids": "stop_token_id",
    "truncation_penalty": "missing_eos_penalty overlong_penalty_factor",
    "use_lora": "use_peft only_optimize_lora",
    "use_offload": "adam_offload offload",
    "use_tensorboard": "enable_tensorboard",
    "value_clip_param": "cliprange_value value_clip clip_range_vf",
    "value_loss_coef": "vf_coef",
    "wandb_entity": "wandb_org",
    "wandb_project": "tracker_project_name project",
    "weight_decay": "l2 actor_weight_decay critic_weight_decay",
}
OTHERWISE = {  # sentence, with our keys quoted: the foreign names that it answers
    "set 'total_episodes' (responses), 'max_iterations' (iterations of 'rollout_batch_size' responses each) or "
    "'total_time_steps' (generated tokens)": (
        "num_train_epochs num_episodes max_steps steps max_samples enable_test_mode test_stop_step"
    ),
    "set 'rollout_batch_size' (responses per iteration), 'num_mini_batch' (optimizer steps per pass over them) and "
    "'per_device_microbatch_size' (responses that fit into memory); gradient accumulation follows from them": (
        "per_device_train_batch_size per_device_training_batch_size gradient_accumulation_steps train_batch_size "
        "local_batch_size local_mini_batch_size generation_batches forward_batch_size backward_batch_size "
        "global_backward_batch_size global_batch_size auto_find_batch_size per_gpu_train_batch_size"
    ),
    "a validation answers 'per_device_rollout_size' prompts at a time, and `evaluate` those of its --batch_size": (
        "per_device_eval_batch_size eval_batch_size"
    ),
    "batches are limited by the number of responses; set 'per_device_microbatch_size' and 'per_device_rollout_size'": (
        "use_dynamic_batch rollout_max_tokens_per_gpu train_max_tokens_per_gpu"
    ),
    "set 'max_prompt_length' (tokens of a prompt) and 'max_new_tokens' (tokens of a response)": "max_len max_seq_len max_length",
    "a response ends at the model's own end tokens (eos), at 'turn_separator' and at 'stop_token_ids'": (
        "stop_token stop eos_token_id add_eot_token"
    ),
    "set 'truncation_penalty', which is subtracted from the score of a response cut at 'max_new_tokens'": "overlong_buffer_len",
    "the console shows two replies at each 'log_interval'; set 'ledger_texts' to all for every reply in ledger.jsonl": (
        "num_sample_generations print_answers print_answers_interval log_completions"
    ),
    "set 'reward_class.id' to a reward and 'reward_class.args' to its arguments; for other rewards write a "
    "class with one method, or use RemoteReward, which queries a server": (
        "reward_model_path reward_model reward_model_name_or_path reward_pretrain remote_rm_url reward_funcs "
        "reward_weights"
    ),
    "the critic starts as a copy of 'model_path', or of 'critic_path', with a new head, or is a head on the policy with "
    "'use_share_model: true'": "value_head_prefix",
    "checkpoints always include the critic": "save_value_network",
    "the critic and the policy are both trained from the first iteration on": "freezing_actor_steps",
    "set 'kl_in' (in the token rewards or in the loss) and 'kl_estimator' (k1 or k3)": "kl_penalty use_kl_loss",
    "set 'kl_rate' (step size of the KL controller); 'kl_rate: 0' keeps 'kl_coef' fixed": (
        "adap_kl_ctrl horizon kl_horizon early_stopping"
    ),
    "set 'clip_param', which clips the ratio on both sides": "eps_clip_low_high epsilon_high",
    "the policy loss is the clipped loss of PPO per token; 'dual_clip_ppo' bounds it for negative advantages": (
        "policy_loss_type loss_type importance_sampling_level ratio_threshold"
    ),
    "scores are used unchanged; 'whiten_rewards' whitens the token rewards, 'use_adv_normalize' the advantages, and your "
    "own reward class can clip scores": (
        "normalize_reward use_score_scaling use_score_norm score_clip reward_clip_range scale_rewards"
    ),
    "'use_adv_normalize' subtracts the mean and divides by the standard deviation, or does neither": "no_advantage_std_norm",
    "every group of responses is used; 'on_reward_error: skip' drops groups that have no score": (
        "dynamic_filtering dynamic_filtering_reward_range"
    ),
    "a loss on other texts is not supported; 'kl_coef' keeps the policy close to the reference": (
        "ptx_coef unsup_coef unsupervised_dataset_name unsupervised_dataset_config_name aux_loss_coef"
    ),
    "learning rates are constant, or fall to 0 with 'use_linear_lr_decay: true'; warm-up is not supported": (
        "lr_scheduler_type lr_scheduler lr_scheduler_kwargs warmup_steps warmup_ratio num_warmup_steps lr_warmup_ratio"
    ),
    "the optimizer is AdamW with PyTorch's betas; set 'opti_eps' and 'weight_decay'": (
        "adam_beta1 adam_beta2 adam_betas optim optim_args optim_target_modules optimizer_cls_and_kwargs"
    ),
    "set 'use_amp: true', which computes in bf16": "bf16 bfloat16",
    "set 'use_amp: true' and 'amp_dtype: fp16'": "fp16",
    "weights stay in float32; 'use_amp: true' computes in 16 bits, with the type in 'amp_dtype'": (
        "dtype torch_dtype bf16_full_eval fp16_full_eval half_precision_backend compute_fp32_loss tf32 align_overflow"
    ),
    "set 'device: cpu'": "use_cpu no_cuda",
    "set 'run_dir' and 'experiment_name'; the run folder is one inside the other, with the trained agent in agent/": (
        "output_dir save_path ckpt_path logging_dir tensorboard_path data_output_path overwrite_output_dir save_hf_ckpt"
    ),
    "set 'use_wandb: true' or 'use_tensorboard: true'; metrics.jsonl is always written": (
        "report_to log_with tracker_kwargs project_kwargs logging_strategy trackio_space_id"
    ),
    "export the variable WANDB_RUN_GROUP instead": "wandb_group",
    "metrics.jsonl has every iteration; set 'log_interval' for the console and the trackers": (
        "logging_first_step logging_nan_inf_filter perf"
    ),
    "set 'save_interval' (iterations between checkpoints)": "save_steps save_strategy save_freq",
    "a checkpoint has everything needed to resume; set 'keep_checkpoints' (number of checkpoints to keep)": (
        "save_only_model disable_ds_ckpt max_ckpt_mem use_ds_universal_ckpt"
    ),
    "use --resume to continue the run in its folder": (
        "resume_from_checkpoint load_checkpoint ignore_data_skip restore_callback_states_from_checkpoint"
    ),
    "set 'eval_interval' and 'eval_episodes' to evaluate on the validation split, with the sampling of the rollouts": (
        "eval_strategy evaluation_strategy eval_dataset eval_split dataset_test_split do_eval eval_on_start eval_delay "
        "eval_temperature eval_n_samples_per_prompt compare_steps"
    ),
    "set 'eval_metric' (higher is better); the best agent is kept in best_agent/, the last one in agent/": (
        "metric_for_best_model load_best_model_at_end greater_is_better push_to_hub_if_best_kwargs"
    ),
    "only the finished agent is uploaded; set 'push_to_hub', or use rlhf-dialog push-to-hub, which has --private": (
        "hub_strategy hub_private_repo hub_always_push hub_revision"
    ),
    "training reads the split train of 'env.args.data_path' and finds the columns by name; see docs/DATA.md": (
        "dataset_train_split dataset_config prompt_split data_split prompt_data_probs input_key label_key "
        "dataset_text_field input_template label_names remove_unused_columns"
    ),
    "set 'turn_separator: chat_template'": "apply_chat_template chat_template chat_template_path",
    "prompts are read once and kept in memory; there are no worker processes": (
        "dataloader_num_workers dataloader_drop_last dataloader_pin_memory dataloader_persistent_workers "
        "dataloader_prefetch_factor dataset_num_proc preprocessing_num_workers"
    ),
    "set 'seed', which controls all random numbers, including the order of the prompts": "data_seed full_determinism",
    "the launcher (accelerate launch, torchrun, deepspeed) sets the number of processes; see docs/SCALING.md": (
        "world_size ddp_backend ddp_timeout ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers "
        "accelerator_config accelerator_kwargs parallelism_config num_processes"
    ),
    "set 'use_fsdp: true', or choose FSDP2 in accelerate config; see docs/SCALING.md": "fsdp fsdp_config",
    "Ray is not used: a launcher starts processes that each hold all models; see docs/SCALING.md": (
        "actor_num_nodes actor_num_gpus_per_node critic_num_nodes critic_num_gpus_per_node ref_num_nodes "
        "ref_num_gpus_per_node reward_num_nodes reward_num_gpus_per_node colocate_actor_ref colocate_critic_reward "
        "colocate_all_models async_train deepspeed_enable_sleep actor_init_on_gpu"
    ),
    "the trained model generates the responses, 'per_device_rollout_size' at a time; vLLM is not used": (
        "vllm_num_engines vllm_tensor_parallel_size vllm_sync_backend vllm_sync_with_ray vllm_enable_sleep "
        "vllm_gpu_memory_utilization enable_prefix_caching enforce_eager use_vllm vllm_mode"
    ),
    "an episode is a single response; environments with several turns are not supported": "agent_func_path environment_factory",
    "a sequence is not split over processes; set 'activation_checkpointing: true' to use less memory": (
        "ring_attn_size ring_head_stride ds_tensor_parallel_size"
    ),
    "set 'use_deepspeed: true'; the ZeRO stage is in the JSON of 'deepspeed_config' (ds_configs/zero3.json: 3)": (
        "zero_stage actor_zero_stage critic_zero_stage deepspeed"
    ),
    "set it in the JSON of 'deepspeed_config'": "zpg overlap_comm grad_accum_dtype deepcompile",
    "ZeRO stage 3 gathers the weights once for each rollout; there is no hybrid engine": (
        "ds3_gather_for_generation enable_hybrid_engine inference_tp_size tp_gather_partition_size release_inference_cache "
        "unpin_actor_parameters"
    ),
    "frozen models are not offloaded; set 'use_lora: true' to do without a second model as reference": (
        "ref_reward_offload offload_reference_model offload_reward_model optimize_cuda_cache optimize_device_cache"
    ),
    "set 'use_lora: true' and 'lora_r'": "lora_rank actor_lora_dim critic_lora_dim",
    "set 'dual_clip_ppo: true' and 'dual_clip_coeff'": "dual_clip",
    "adapters of 'use_lora' have fixed names and no dropout, and the reference is the policy without them": (
        "model_adapter_name ref_adapter_name lora_dropout lora_task_type lora_modules_to_save use_rslora use_dora "
        "enable_mixed_precision_lora"
    ),
    "quantised weights are not supported; set 'use_lora: true' and 'use_amp: true' to use less memory": (
        "load_in_4bit load_in_8bit bnb_4bit_quant_type use_bnb_nested_quant"
    ),
    "attention without padding is on by default, see 'packing'": "attn_implementation flash_attn use_liger_kernel",
    "models run without a compiler": "torch_compile torch_compile_backend torch_compile_mode",
    "set 'use_rich_handler: false'": "disable_tqdm",
    "'activation_checkpointing' has no further options": (
        "gradient_checkpointing_kwargs gradient_checkpointing_use_reentrant activation_checkpointing_kwargs"
    ),
    "dropout is off in every model": "actor_dropout critic_dropout disable_dropout",
    "an average of the weights is not supported": "enable_ema ema_beta",
    "padding is found by masks; all settings of the model come from the folder of 'model_path'": (
        "num_padding_at_beginning disable_fast_tokenizer is_encoder_decoder is_peft_model use_cache"
    ),
    "download that version of the model and set 'model_path' to its folder": "model_revision use_ms",
}
HINTS = {name: f"did you mean '{key}'?" for key, names in RENAMED.items() for name in names.split()} | {
    name: sentence for sentence, names in OTHERWISE.items() for name in names.split()
}
_QUOTED = re.compile(r"'([\w.]+)(?:: \w+)?'")


def keys_in(hint: str) -> list[str]:
    """The keys that a hint names.

    >>> keys_in("set 'use_amp: true' and 'amp_dtype: fp16'")
    ['use_amp', 'amp_dtype']
    """
    return _QUOTED.findall(hint)


def hint(name: str, keys: Collection[str]) -> str:
    """`; did you mean 'x'?` or `; <a sentence>` for a name of another library, or an empty string.

    A hint that names a key outside of `keys` is ignored: other commands have other keys.
    """
    text = HINTS.get(name, "")
    return f"; {text}" if text and set(keys_in(text)) <= set(keys) else ""


NO_EFFECT = {
    "hidden_size": "the language model defines its own width",
    "use_recurrent_policy": "a language model has no recurrent state",
    "use_naive_recurrent_policy": "a language model has no recurrent state",
    "data_chunk_length": "a language model has no recurrent state",
    "recurrent_N": "a language model has no recurrent state",
    "n_rollout_threads": "set env_num instead",
    "num_env_steps": "set total_time_steps instead",
    "mini_batch_size": "set num_mini_batch instead",
    "use_popart": "set use_valuenorm instead",
    "use_proper_time_limits": "the length limit is part of the task: the value after a truncated response is 0",
    "use_value_active_masks": "padding is always excluded",
    "use_policy_active_masks": "padding is always excluded",
    "use_policy_vhead": "set use_share_model instead",
    "policy_value_loss_coef": "it is an option of use_policy_vhead, which has no effect either",
    "use_joint_action_loss": "there is one agent",
    "callbacks": "callbacks are not supported; register a vec-info class, or call PPOTrainer.step() yourself",
    "log_each_episode": "every iteration is logged",
    "use_eval": "set eval_interval instead",
    "eval_metrics": "all are logged; set eval_metric to the one that selects the best checkpoint",
    "load_optimizer": "--resume restores the optimizer",
    "model_dir": "set model_path instead",
    "save_dir": "set run_dir and experiment_name instead",
    "zero3_gather_for_generation": "under ZeRO stage 3 the weights are always gathered for a rollout",
}
