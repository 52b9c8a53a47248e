"""The fields of configurations that transformers 5.23.0 reads: no other changes what it computes.

Written by tests/reference/make_read_fields.py: do not edit.
"""

from __future__ import annotations

_WORDS = {
    "shared": (
        "architectures attention_chunk_size attention_dropout attn_implementation attribute_map base_config_key "
        "base_model_ep_plan base_model_fsdp_plan base_model_pp_plan base_model_tp_plan bos_token_id cache_dir "
        "chain_hidden_post_norm chunk_size_feed_forward classifier_dropout commit_message config_class "
        "distributed_config dtype embed_dim eos_token_id experts_implementation extra_config_files extra_files "
        "fget first_k_dense_replace force_download fusion_config get_config_class gguf_file gradient_checkpointing "
        "head_dim hidden_dropout hidden_size id2label init_kwargs init_std initializer_factor initializer_range "
        "is_causal is_encoder_decoder is_heterogeneous label2id layer_types local_files_only "
        "logits_mup_width_multiplier mlp_layer_types model_type mtp_hidden_states_first mtp_layer_types "
        "mtp_mlp_layer_types mtp_per_layer_config name_or_path num_heads num_hidden_layers num_labels "
        "num_mtp_layers optional output_attentions output_hidden_states pad_token_id per_layer_config problem_type "
        "proxies quantization_config repo_id return_dict return_unused_kwargs revision rms_norm_eps "
        "rope_parameters rope_scaling rope_theta sep_token_id sliding_window sub_configs sub_configs_defaults "
        "subfolder tie_word_embeddings token token_classification_bias torch_dtype transformers_version "
        "transformers_weights trust_remote_code unpadded_vocab_size vocab_size"
    ),
    "rotary": (
        "ROPE_INIT_FUNCTIONS attention_factor beta_fast beta_slow factor high_freq_factor long_factor "
        "low_freq_factor mrope_section mscale mscale_all_dim original_max_position_embeddings "
        "partial_rotary_factor rope_theta rope_type short_factor truncate type"
    ),
    "scheme": (
        "actorder block_structure dynamic format group_size input_activations num_bits observer observer_kwargs "
        "output_activations scale_dtype strategy symmetric targets type weights zp_dtype"
    ),
    "gptq": (
        "act_group_aware backend batch_size bits block_name_to_quantize cache_block_outputs damp_percent dataset "
        "desc_act format group_size max_input_length meta model_seqlen module_name_preceding_first_block "
        "modules_in_block_to_quantize pad_token_id sym tokenizer true_sequential"
    ),
    "awq": "backend bits group_size modules_to_not_convert zero_point",
    "compressed-tensors": (
        "config_groups dequantize format global_compression_ratio ignore kv_cache_scheme quant_method "
        "quantization_status run_compressed use_optimized_inference"
    ),
    "fp8": (
        "activation_scheme dequantize expert_dtype modules_to_convert modules_to_not_convert scale_fmt "
        "weight_block_size"
    ),
    "mxfp4": "dequantize modules_to_not_convert",
    "llama": (
        "attention_bias hidden_act intermediate_size max_position_embeddings mlp_bias num_attention_heads "
        "num_key_value_heads pretraining_tp use_cache"
    ),
    "mistral": "hidden_act intermediate_size max_position_embeddings num_attention_heads num_key_value_heads use_cache",
    "qwen2": (
        "hidden_act intermediate_size max_position_embeddings max_window_layers num_attention_heads "
        "num_key_value_heads use_cache use_sliding_window"
    ),
    "qwen3": (
        "attention_bias hidden_act intermediate_size max_position_embeddings max_window_layers num_attention_heads "
        "num_key_value_heads use_cache use_sliding_window"
    ),
    "phi3": (
        "embd_pdrop hidden_act intermediate_size max_position_embeddings num_attention_heads num_key_value_heads "
        "original_max_position_embeddings partial_rotary_factor resid_pdrop use_cache"
    ),
    "gemma": (
        "attention_bias hidden_act intermediate_size max_position_embeddings num_attention_heads "
        "num_key_value_heads use_bidirectional_attention use_cache"
    ),
    "mixtral": (
        "hidden_act intermediate_size max_position_embeddings num_attention_heads num_experts num_experts_per_tok "
        "num_key_value_heads num_local_experts output_router_logits router_aux_loss_coef router_jitter_noise "
        "use_cache"
    ),
    "qwen3_moe": (
        "attention_bias decoder_sparse_step hidden_act intermediate_size max_position_embeddings mlp_only_layers "
        "moe_intermediate_size norm_topk_prob num_attention_heads num_experts num_experts_per_tok "
        "num_key_value_heads output_router_logits router_aux_loss_coef use_cache use_sliding_window"
    ),
    "gemma2": (
        "attention_bias attn_logit_softcapping final_logit_softcapping hidden_activation intermediate_size "
        "max_position_embeddings num_attention_heads num_key_value_heads query_pre_attn_scalar "
        "use_bidirectional_attention use_cache"
    ),
    "gemma3_text": (
        "attention_bias attn_logit_softcapping boi_token_id boi_token_index default_theta eoi_token_id "
        "eoi_token_index final_logit_softcapping hidden_activation image_token_id image_token_index "
        "intermediate_size max_position_embeddings mm_tokens_per_image num_attention_heads num_key_value_heads "
        "query_pre_attn_scalar rope_local_base_freq sliding_window_pattern text_config use_bidirectional_attention "
        "use_cache vision_config"
    ),
    "olmo2": (
        "attention_bias hidden_act intermediate_size max_position_embeddings num_attention_heads "
        "num_key_value_heads use_cache"
    ),
    "bert": (
        "add_cross_attention attention_probs_dropout_prob embedding_size hidden_act hidden_dropout_prob "
        "intermediate_size is_decoder layer_norm_eps max_position_embeddings num_attention_heads type_vocab_size "
        "use_cache"
    ),
}
READ_FIELDS = {kind: frozenset(words.split()) for kind, words in _WORDS.items()}
"""By what reads them: a method of quantization, a family (its `model_type`), or what all have in common."""
