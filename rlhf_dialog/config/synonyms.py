"""The names that TRL and OpenRLHF have for keys of a PPO run; the keys of OpenRL that have no effect here."""

from collections.abc import Collection

TABLE = """
activation_checkpointing: gradient_checkpointing
clip_param: cliprange eps_clip clip_range epsilon
clip_param_high: epsilon_high eps_clip_high clip_ratio_high clip_eps_high
critic_lr: critic_learning_rate
critic_path: critic_pretrain value_model
critic_warmup: freezing_actor_steps
deepspeed_config: zero_stage deepspeed
device: use_cpu no_cuda
dual_clip_coeff: dual_clip delta
engine: use_vllm vllm_mode vllm_num_engines vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
entropy_coef: entropy_loss_coef ent_coef
env.args.columns: input_key label_key input_template
env.args.data_path: dataset_name dataset query_dataset prompt_data train_dataset
env.args.split: dataset_train_split prompt_split eval_split dataset_test_split
env.args.tokenizer_path: tokenizer
environment: agent_func_path environment_factory
eval_interval: eval_steps eval_strategy
eval_metric: metric_for_best_model
experiment_name: exp_name run_name wandb_run_name
gae_lambda: lam lambd gae_lam
keep_checkpoints: save_total_limit max_ckpt_num
group_std: scale_rewards norm_adv_by_std_in_grpo
kl_coef: init_kl_coef beta
kl_in: kl_penalty use_kl_loss
kl_rate: adap_kl_ctrl horizon kl_horizon
kl_target: target target_kl
log_interval: logging_steps
loss_average: loss_agg_mode
load_in_4bit: bnb_4bit_quant_type use_bnb_nested_quant
lora_r: lora_rank
lora_target_modules: target_modules
lr: learning_rate actor_learning_rate
max_grad_norm: max_norm
max_iterations: num_total_batches max_steps
max_new_tokens: response_length generate_max_len max_completion_length
max_prompt_length: prompt_max_len max_len max_length
model_path: sft_model_path model_name_or_path model_name model pretrain
num_mini_batch: num_mini_batches train_batch_size local_mini_batch_size
num_responses_per_prompt: n_samples_per_prompt num_generations
opti_eps: adam_epsilon
packing: packing_samples attn_implementation flash_attn
per_device_microbatch_size: micro_train_batch_size per_device_train_batch_size
per_device_rollout_size: local_rollout_forward_batch_size micro_rollout_batch_size per_device_eval_batch_size
overlong_penalty_tokens: overlong_buffer_len overlong_buffer soft_punish_cache
policy_loss: loss_type policy_loss_type
ppo_epoch: num_ppo_epochs ppo_epochs max_epochs
precision: bf16 bfloat16 fp16 dtype torch_dtype
push_to_hub: hub_model_id
ratio: importance_sampling_level
ref_ds_config: ref_reward_offload
reward_class: reward_model_path reward_model reward_pretrain remote_rm_url reward_funcs reward_weights
rollout_batch_size: gradient_accumulation_steps batch_size
run_dir: output_dir save_path ckpt_path logging_dir
sample_interval: num_sample_generations log_completions
save_interval: save_steps save_strategy
stop_token_ids: stop_token_id stop_token
total_episodes: num_train_epochs num_episodes max_samples
truncation_penalty: missing_eos_penalty overlong_penalty_factor mask_truncated_completions
turn_separator: apply_chat_template chat_template
use_adv_normalize: no_advantage_std_norm
use_fsdp: fsdp fsdp_config
use_linear_lr_decay: lr_scheduler_type lr_scheduler
use_lora: use_peft
use_offload: adam_offload
use_rich_handler: disable_tqdm
use_wandb: report_to log_with
value_clip_param: cliprange_value value_clip
value_loss_coef: vf_coef
wandb_entity: wandb_org
weight_decay: l2
whiten_rewards: normalize_reward
"""  # our key: their names
HINTS = {name: line.split(":")[0] for line in TABLE.strip().splitlines() for name in line.split()[1:]}


def hint(name: str, keys: Collection[str]) -> str:
    """`; did you mean 'x'?` for a name of another library; empty where x is not among the `keys`.

    >>> hint("cliprange", ["clip_param"])
    "; did you mean 'clip_param'?"
    """
    return f"; did you mean '{HINTS[name]}'?" if HINTS.get(name) in keys else ""


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
