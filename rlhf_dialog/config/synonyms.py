"""The names of the keys of TRL, OpenRLHF and DeepSpeed-Chat here, or one word where there is no such key; OpenRL's idle keys."""

from collections.abc import Collection

TABLE = """
activation_checkpointing: gradient_checkpointing actor_gradient_checkpointing critic_gradient_checkpointing
clip_param: cliprange eps_clip clip_range epsilon eps_clip_low_high
critic_lr: critic_learning_rate critic_lora_learning_rate
critic_path: critic_model_name_or_path critic_pretrain value_model
critic_warmup: freezing_actor_steps
deepspeed_config: zero_stage actor_zero_stage critic_zero_stage deepspeed zpg overlap_comm grad_accum_dtype
    deepcompile
device: use_cpu no_cuda
dual_clip_coeff: dual_clip
entropy_coef: entropy_loss_coef ent_coef
env.args.columns: input_key label_key input_template remove_unused_columns
env.args.data_path: dataset_name dataset query_dataset prompt_data train_dataset dataset_config prompt_data_probs
env.args.split: dataset_train_split prompt_split data_split dataset_test_split eval_split eval_dataset
env.args.tokenizer_path: tokenizer
environment: agent_func_path environment_factory
eval_episodes: eval_temperature eval_n_samples_per_prompt
eval_interval: eval_steps eval_strategy eval_on_start compare_steps
eval_metric: metric_for_best_model load_best_model_at_end greater_is_better
experiment_name: exp_name run_name wandb_run_name task_name
gae_lambda: lam lambd gae_lam
keep_checkpoints: save_total_limit max_ckpt_num save_only_model disable_ds_ckpt max_ckpt_mem use_ds_universal_ckpt
kl_coef: init_kl_coef beta
kl_in: kl_penalty use_kl_loss
kl_rate: adap_kl_ctrl horizon kl_horizon early_stopping
kl_target: target target_kl
log_interval: logging_steps logging_first_step perf
lora_r: lora_rank actor_lora_dim critic_lora_dim
lora_target_modules: target_modules actor_lora_module_name critic_lora_module_name
lr: learning_rate actor_learning_rate actor_lora_learning_rate
max_grad_norm: max_norm
max_iterations: num_total_batches max_steps steps test_stop_step enable_test_mode
max_new_tokens: response_length generate_max_len max_answer_seq_len max_completion_length
max_prompt_length: prompt_max_len max_prompt_seq_len max_len max_length
model_path: sft_model_path model_name_or_path model_name model pretrain actor_model_name_or_path model_revision use_ms
num_mini_batch: num_mini_batches train_batch_size local_mini_batch_size generation_batches
num_responses_per_prompt: n_samples_per_prompt num_generations
opti_eps: adam_epsilon
packing: packing_samples attn_implementation flash_attn
per_device_microbatch_size: micro_train_batch_size micro_batch_size per_device_train_batch_size
    per_device_training_batch_size forward_batch_size backward_batch_size use_dynamic_batch train_max_tokens_per_gpu
per_device_rollout_size: local_rollout_forward_batch_size micro_rollout_batch_size vllm_generate_batch_size
    per_device_generation_batch_size per_device_eval_batch_size rollout_max_tokens_per_gpu
ppo_epoch: num_ppo_epochs ppo_epochs max_epochs
precision: bf16 bfloat16 fp16 dtype torch_dtype compute_fp32_loss tf32
push_to_hub: hub_model_id hub_strategy hub_private_repo
ref_ds_config: ref_reward_offload offload_reference_model offload_reward_model
reward_class: reward_model_path reward_model reward_pretrain remote_rm_url reward_funcs reward_weights
rollout_batch_size: gradient_accumulation_steps batch_size local_batch_size global_batch_size global_backward_batch_size
run_dir: output_dir save_path ckpt_path logging_dir tensorboard_path data_output_path overwrite_output_dir
    save_hf_ckpt
sample_interval: num_sample_generations print_answers print_answers_interval log_completions
save_interval: save_steps save_strategy
seed: data_seed full_determinism
stop_token_ids: stop_token_id stop_token add_eot_token
total_episodes: num_train_epochs num_episodes max_samples
truncation_penalty: missing_eos_penalty overlong_penalty_factor overlong_buffer_len
turn_separator: apply_chat_template chat_template
use_adv_normalize: no_advantage_std_norm
use_fsdp: fsdp fsdp_config
use_linear_lr_decay: lr_scheduler_type lr_scheduler lr_scheduler_kwargs
use_lora: use_peft only_optimize_lora
use_offload: adam_offload offload
use_rich_handler: disable_tqdm
use_share_model: value_head_prefix
use_tensorboard: enable_tensorboard
use_wandb: report_to log_with tracker_kwargs project_kwargs logging_strategy wandb_group
value_clip_param: cliprange_value value_clip
value_loss_coef: vf_coef
wandb_entity: wandb_org
wandb_project: tracker_project_name
weight_decay: l2 actor_weight_decay critic_weight_decay
whiten_rewards: normalize_reward use_score_scaling use_score_norm score_clip reward_clip_range scale_rewards
automatic: save_value_network actor_dropout critic_dropout disable_dropout num_padding_at_beginning
    disable_fast_tokenizer is_encoder_decoder is_peft_model use_cache dataloader_num_workers dataloader_drop_last
    dataset_num_proc preprocessing_num_workers ds3_gather_for_generation align_overflow optimize_cuda_cache
    optimize_device_cache gradient_checkpointing_kwargs gradient_checkpointing_use_reentrant
--resume: resume_from_checkpoint load_checkpoint
launcher: world_size num_processes ddp_timeout ddp_find_unused_parameters accelerator_kwargs actor_num_nodes
    actor_num_gpus_per_node critic_num_nodes critic_num_gpus_per_node ref_num_nodes ref_num_gpus_per_node
    reward_num_nodes reward_num_gpus_per_node colocate_actor_ref colocate_critic_reward colocate_all_models
    actor_init_on_gpu
unsupported: dynamic_filtering dynamic_filtering_reward_range push_to_hub_if_best_kwargs
    policy_loss_type loss_type ratio_threshold ptx_coef unsup_coef unsupervised_dataset_name
    unsupervised_dataset_config_name aux_loss_coef warmup_steps warmup_ratio num_warmup_steps lr_warmup_ratio
    adam_beta1 adam_beta2 adam_betas optim async_train deepspeed_enable_sleep vllm_num_engines
    vllm_tensor_parallel_size vllm_sync_backend vllm_sync_with_ray vllm_enable_sleep vllm_gpu_memory_utilization
    enable_prefix_caching enforce_eager use_vllm ring_attn_size ring_head_stride ds_tensor_parallel_size
    enable_hybrid_engine inference_tp_size tp_gather_partition_size release_inference_cache unpin_actor_parameters
    model_adapter_name ref_adapter_name lora_dropout lora_task_type lora_modules_to_save use_rslora
    enable_mixed_precision_lora load_in_4bit load_in_8bit use_liger_kernel torch_compile enable_ema ema_beta
"""  # our key, or a word of WORDS, before their names
WORDS = ("automatic", "--resume", "launcher", "unsupported")  # what becomes of a thing that no key sets


def _read_table(text: str) -> dict[str, str]:
    """Each of their names with what stands before it."""
    found: dict[str, str] = {}
    here = ""
    for name in text.split():
        if name.endswith(":"):
            here = name[:-1]
        else:
            found[name] = here
    return found


HINTS = _read_table(TABLE)


def hint(name: str, keys: Collection[str]) -> str:
    """`; did you mean 'x'?`, or `; ` and a word, for a name of another library; empty where x is not among the `keys`.

    >>> hint("cliprange", ["clip_param"]), hint("use_vllm", [])
    ("; did you mean 'clip_param'?", '; unsupported')
    """
    word = HINTS.get(name, "")
    if word in keys:
        return f"; did you mean '{word}'?"
    return f"; {word}" if word in WORDS else ""


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
