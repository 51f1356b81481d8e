"""What vulture must take for used, and why. Anything else that nothing uses is deleted."""

# ruff: noqa: B018
_ = object()

# Commands of the table in `headrace_cli`, named there as text
_.bench_compare
_.bench_modes
_.bench_quality
_.bench_serve
_.explain_request
_.tune

# Resources, found by their kind (`resource_of`)
_.CLUSTER_ROLES
_.CLUSTER_ROLE_BINDINGS
_.CONTROLLER_REVISIONS
_.CUSTOM_RESOURCE_DEFINITIONS
_.ENDPOINT_SLICES
_.EVENTS
_.HTTP_ROUTES
_.LEASES
_.NAMESPACES
_.PERSISTENT_VOLUME_CLAIMS
_.POD_DISRUPTION_BUDGETS
_.POD_MONITORS
_.PRIORITY_CLASSES
_.PROMETHEUS_RULES
_.REPLICA_SETS
_.ROLES
_.ROLE_BINDINGS
_.RUNTIME_CLASSES
_.SERVICE_ACCOUNTS

# Fields of resources and records: people, clients or the API server read them
_.corrections
_.creation_timestamp
_.cwd
_.decode_tokens
_.deletion_timestamp
_.e2e_p95
_.honour_user
_.mean_in_flight
_.model_config
_.observed_generation
_.owner_references
_.prefill_tokens
_.profile
_.ready_replicas
_.resource_version
_.tokens_decode
_.tokens_discarded
_.tokens_prefill
_.trial_log
_.value_from

# Fields of request bodies: accepted, and without effect
_.audio
_.function_call
_.include_obfuscation
_.prediction
_.prompt_cache_key
_.prompt_cache_retention
_.safety_identifier
_.service_tier

# A unit that a flag names
_.MILLISECONDS

# What a step hands to attention: kernels read it, SDPA has its own form
_.key_lengths
_.query_starts

# Set on objects of libraries: Kopf, aiohttp, rich, uvicorn, transformers, kubernetes
_.__annotations__
_.__signature__
_.add_bos_token
_.caption
_.caption_justify
_.client_timeout
_.connect_timeout
_.default_backoff
_.diffbase_storage
_.disable_strict_ssl_verification
_.disabled
_.finalizer
_.inactivity_timeout
_.progress_storage
_.request_timeout
_.server_hostname
_.server_timeout
_.should_exit
_.standalone
_.ultimate_exiting_timeout
_.user_agent

# Called by libraries, which they override
_._load_oid_token
_.capture_signals
_.ignore_aliases
_.load_from_exec_plugin
_.send_400_response

# Calls of gRPC, dispatched by name: CRI and the device plugin
_.create_container
_.exec_sync
_.get_device_plugin_options
_.get_preferred_allocation
_.image_fs_info
_.image_status
_.list_and_watch
_.list_container_stats
_.list_containers
_.list_images
_.list_pod_sandbox
_.list_pod_sandbox_stats
_.pod_sandbox_stats
_.pod_sandbox_status
_.pre_start_container
_.pull_image
_.remove_image
_.remove_pod_sandbox
_.reopen_container_log
_.run_pod_sandbox
_.runtime_config
_.start_container
_.stop_container
_.stop_pod_sandbox
_.update_container_resources
_.update_pod_sandbox_resources
_.update_runtime_config

# Steps of a container's file view, dispatched by name
_.do_dev
_.do_hide
_.do_mask
_.do_open
_.do_overlay
_.do_proc
_.do_readonly
_.do_seal
_.do_skeleton
_.do_sys

# An API server and a slot of their own, for tests; a proxy's sockets
_.api_server
_.listening
_.private_slot

# What a test against a real Prometheus asks of a query
_.is_share
