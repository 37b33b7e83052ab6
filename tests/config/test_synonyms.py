"""Keys of TRL, OpenRLHF and DeepSpeed-Chat: each gets the key here, or one word."""

import pytest

from rlhf_dialog.config.loading import load_config, load_settings
from rlhf_dialog.config.problems import walk
from rlhf_dialog.config.schema import Config
from rlhf_dialog.config.synonyms import HINTS, NO_EFFECT, TABLE, WORDS, hint
from rlhf_dialog.errors import UserError
from rlhf_dialog.training.supervised.settings import SupervisedKeys

SMALL = "model_path: m\nenv: {args: {data_path: d}}\nreward_class: {id: LengthMatch}\n"
KEYS = [key for key, _ in walk(Config)]

TRL_PPO = """
exp_name seed num_mini_batches total_episodes local_rollout_forward_batch_size num_sample_generations response_length stop_token
stop_token_id temperature missing_eos_penalty sft_model_path world_size num_total_batches micro_batch_size local_batch_size
batch_size local_mini_batch_size mini_batch_size push_to_hub reward_model_path model_adapter_name ref_adapter_name num_ppo_epochs
whiten_rewards kl_coef kl_estimator cliprange vf_coef cliprange_value gamma lam ds3_gather_for_generation
"""
TRL_ARGUMENTS = """
learning_rate per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps bf16 fp16 tf32 output_dir
overwrite_output_dir report_to run_name logging_dir logging_steps logging_strategy logging_first_step save_steps save_strategy
save_total_limit save_only_model eval_steps eval_strategy eval_on_start num_train_epochs max_steps lr_scheduler_type
lr_scheduler_kwargs warmup_steps warmup_ratio max_grad_norm weight_decay adam_beta1 adam_beta2 adam_epsilon optim
gradient_checkpointing gradient_checkpointing_kwargs torch_compile use_liger_kernel dataset_name dataset_config
dataset_train_split dataset_test_split dataset_num_proc dataloader_num_workers dataloader_drop_last remove_unused_columns
metric_for_best_model load_best_model_at_end greater_is_better hub_model_id hub_strategy hub_private_repo resume_from_checkpoint
data_seed full_determinism use_cpu no_cuda ddp_timeout ddp_find_unused_parameters fsdp fsdp_config deepspeed local_rank
disable_tqdm model_name_or_path model_revision torch_dtype dtype trust_remote_code attn_implementation use_peft lora_r lora_alpha
lora_dropout lora_target_modules lora_modules_to_save lora_task_type use_rslora load_in_8bit load_in_4bit
"""
TRL_BEFORE_0_12 = """
log_with task_name model_name query_dataset reward_model tracker_kwargs accelerator_kwargs project_kwargs tracker_project_name
push_to_hub_if_best_kwargs steps adap_kl_ctrl init_kl_coef kl_penalty target horizon forward_batch_size ppo_epochs
optimize_cuda_cache optimize_device_cache early_stopping target_kl compare_steps ratio_threshold use_score_scaling use_score_norm
score_clip is_encoder_decoder is_peft_model backward_batch_size global_backward_batch_size global_batch_size
"""
OPENRLHF = """
ref_num_nodes ref_num_gpus_per_node reward_num_nodes reward_num_gpus_per_node colocate_actor_ref actor_num_nodes
actor_num_gpus_per_node critic_num_nodes critic_num_gpus_per_node colocate_critic_reward colocate_all_models vllm_num_engines
vllm_tensor_parallel_size vllm_sync_backend vllm_sync_with_ray enable_prefix_caching enforce_eager vllm_enable_sleep
vllm_gpu_memory_utilization async_train eval_steps save_steps logging_steps ckpt_path save_hf_ckpt disable_ds_ckpt max_ckpt_num
max_ckpt_mem load_checkpoint use_ds_universal_ckpt local_rank zero_stage gradient_checkpointing deepcompile bf16 enable_ema
ema_beta zpg adam_offload actor_init_on_gpu flash_attn use_liger_kernel grad_accum_dtype overlap_comm
gradient_checkpointing_use_reentrant disable_fast_tokenizer deepspeed_enable_sleep ds_tensor_parallel_size packing_samples
use_dynamic_batch rollout_max_tokens_per_gpu train_max_tokens_per_gpu load_in_4bit lora_rank lora_alpha target_modules
lora_dropout save_path num_episodes rollout_batch_size vllm_generate_batch_size micro_rollout_batch_size max_epochs prompt_max_len
generate_max_len max_len max_samples max_norm l2 ptx_coef eps_clip eps_clip_low_high dual_clip value_clip lambd gamma
micro_train_batch_size train_batch_size normalize_reward top_p temperature seed full_determinism freezing_actor_steps
n_samples_per_prompt save_value_network actor_learning_rate critic_learning_rate lr_warmup_ratio lr_scheduler kl_target kl_horizon
init_kl_coef policy_loss_type kl_estimator aux_loss_coef entropy_loss_coef adam_betas reward_clip_range advantage_estimator
use_kl_loss no_advantage_std_norm overlong_buffer_len overlong_penalty_factor ring_attn_size ring_head_stride pretrain
reward_pretrain remote_rm_url critic_pretrain value_head_prefix ref_reward_offload agent_func_path prompt_data prompt_data_probs
prompt_split eval_dataset eval_split eval_temperature eval_n_samples_per_prompt input_key label_key input_template
apply_chat_template use_wandb wandb_org wandb_group wandb_project wandb_run_name dynamic_filtering dynamic_filtering_reward_range
use_tensorboard perf use_ms
"""
DEEPSPEED_CHAT = """
data_path data_split data_output_path unsupervised_dataset_name unsupervised_dataset_config_name unsup_coef
actor_model_name_or_path critic_model_name_or_path num_padding_at_beginning per_device_generation_batch_size
per_device_training_batch_size generation_batches ppo_epochs max_prompt_seq_len max_answer_seq_len actor_learning_rate
critic_learning_rate actor_weight_decay critic_weight_decay num_train_epochs lr_scheduler_type gradient_accumulation_steps
num_warmup_steps output_dir seed preprocessing_num_workers local_rank enable_hybrid_engine unpin_actor_parameters
release_inference_cache inference_tp_size tp_gather_partition_size offload dtype offload_reference_model offload_reward_model
actor_zero_stage critic_zero_stage actor_gradient_checkpointing critic_gradient_checkpointing actor_dropout critic_dropout
actor_lora_dim actor_lora_module_name critic_lora_dim critic_lora_module_name only_optimize_lora actor_lora_learning_rate
critic_lora_learning_rate enable_ema enable_mixed_precision_lora compute_fp32_loss enable_tensorboard tensorboard_path
add_eot_token align_overflow print_answers print_answers_interval enable_test_mode test_stop_step
"""
LISTS = {
    "TRL's PPOConfig": TRL_PPO,
    "TRL's other arguments": TRL_ARGUMENTS,
    "TRL before 0.12": TRL_BEFORE_0_12,
    "OpenRLHF": OPENRLHF,
    "DeepSpeed-Chat": DEEPSPEED_CHAT,
}


@pytest.mark.parametrize("library", LISTS)
def test_every_field_of_another_library_has_a_hint_or_is_a_key(library):
    names = LISTS[library].split()
    assert len(names) > 25
    level_below = {key.rsplit(".", 1)[-1] for key in KEYS}
    assert [name for name in names if name not in {*HINTS, *KEYS, *NO_EFFECT, *level_below}] == []


def test_every_key_of_the_table_exists_and_a_name_is_in_one_row():
    ours = [name[:-1] for name in TABLE.split() if name.endswith(":")]
    theirs = [name for name in TABLE.split() if not name.endswith(":")]
    assert set(ours) - set(KEYS) == set(WORDS)
    assert (len(ours), len(theirs)) == (len(set(ours)), len(set(theirs)))
    assert not set(theirs) & {*KEYS, *NO_EFFECT}


def said_of(tmp_path, key: str, nested: str = "") -> str:
    """The message about the key with its value 1, at the top or in `env.args`."""
    path = tmp_path / "run.yaml"
    text = SMALL.replace("data_path: d", f"data_path: d, {key}: 1") if nested else f"{SMALL}{key}: 1\n"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        load_config(path)
    first, line = str(caught.value).splitlines()
    assert first.endswith("1 problem")
    return line.strip()


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("learning_rate", "lr"),
        ("response_length", "max_new_tokens"),
        ("vf_coef", "value_loss_coef"),
        ("cliprange", "clip_param"),
        ("lam", "gae_lambda"),
        ("lambd", "gae_lambda"),
        ("num_ppo_epochs", "ppo_epoch"),
        ("num_mini_batches", "num_mini_batch"),
        ("missing_eos_penalty", "truncation_penalty"),
        ("sft_model_path", "model_path"),
        ("dataset_name", "env.args.data_path"),
        ("init_kl_coef", "kl_coef"),
        ("critic_learning_rate", "critic_lr"),
        ("n_samples_per_prompt", "num_responses_per_prompt"),
        ("max_answer_seq_len", "max_new_tokens"),
        ("gradient_checkpointing", "activation_checkpointing"),
        ("micro_train_batch_size", "per_device_microbatch_size"),
        ("local_rollout_forward_batch_size", "per_device_rollout_size"),
        ("cliprange_value", "value_clip_param"),
        ("stop_token_id", "stop_token_ids"),
        ("num_episodes", "total_episodes"),
        ("reward_model_path", "reward_class"),
        ("fp16", "precision"),
        ("zero_stage", "deepspeed_config"),
        ("freezing_actor_steps", "critic_warmup"),
        ("ref_reward_offload", "ref_ds_config"),
        ("environment_factory", "environment"),
    ],
)
def test_a_synonym_wins_over_the_nearest_name(tmp_path, key, meant):
    assert said_of(tmp_path, key) == f"{key}: unknown key; did you mean '{meant}'?"
    assert said_of(tmp_path, key, nested="env.args") == f"env.args.{key}: unknown key; did you mean '{meant}'?"


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("use_vllm", "unsupported"),
        ("world_size", "launcher"),
        ("load_checkpoint", "--resume"),
        ("disable_dropout", "automatic"),
    ],
)
def test_where_there_is_no_such_key_a_word_says_what_becomes_of_it(tmp_path, key, word):
    assert said_of(tmp_path, key) == f"{key}: unknown key; {word}"


def test_other_names_get_the_nearest_key_or_nothing(tmp_path):
    assert said_of(tmp_path, "gama") == "gama: unknown key; did you mean 'gamma'?"
    assert said_of(tmp_path, "clip_parm") == "clip_parm: unknown key; did you mean 'clip_param'?"
    assert said_of(tmp_path, "xyzzy") == "xyzzy: unknown key"
    assert said_of(tmp_path, "data_path") == "data_path: unknown key; did you mean 'env.args.data_path'?"
    assert said_of(tmp_path, "hub_token").startswith("hub_token: unknown key; set secrets")


def test_a_command_with_other_keys_is_not_told_of_ours():
    assert hint("learning_rate", KEYS) == "; did you mean 'lr'?"
    assert hint("learning_rate", ["learning_rat", "size"]) == ""
    assert hint("actor_dropout", []) == "; automatic"
    with pytest.raises(UserError, match=r"num_train_epochs: unknown key$"):
        load_settings(SupervisedKeys, None, {"num_train_epochs": 3})
