"""Everything of a model that its owner could notice a change in."""

import copy


def snapshot(model):
    modules = [
        (
            name,
            type(module),
            module.training,
            {k: id(v) for k, v in vars(module).items() if k != "training"},
            [len(hooks) for hooks in (module._forward_hooks, module._forward_pre_hooks)],
        )
        for name, module in model.named_modules()
    ]
    tensors = [
        (name, tensor.requires_grad, tensor.data_ptr(), tensor._version, tensor.grad is None)
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    ]
    configs = [model.config.to_dict(), model.generation_config.to_dict()]
    return modules, tensors, copy.deepcopy(configs), model.config._attn_implementation
