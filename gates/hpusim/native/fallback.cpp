// SPDX-License-Identifier: Apache-2.0
// Every operator of the device: run the CPU kernel on aliases of the device tensors, hand the results back as device
// tensors. A tensor argument that lives on the host is refused, as on hardware, unless it has no dimensions.

#include "device.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <vector>

namespace hpusim {
namespace {

using at::Tensor;

bool on_device(const Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::HPU;
}

// Aliases made for one call: which CPU storage stands for which device storage, and which tensor for which.
class Aliases {
 public:
  Tensor host(const Tensor& tensor) {
    const auto storage = alias_of(tensor.storage());
    auto alias = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
    alias.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
    alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    if (tensor.is_conj()) {
      alias._set_conj(true);
    }
    if (tensor.is_neg()) {
      alias._set_neg(true);
    }
    tensors_.emplace_back(alias, tensor);
    return alias;
  }

  // The device tensor for a result: the argument itself, a view of an argument's storage, or a new tensor.
  Tensor device(const Tensor& result) {
    if (!result.defined() || result.device().type() != c10::DeviceType::CPU) {
      return result;
    }
    for (const auto& [alias, original] : tensors_) {
      if (alias.unsafeGetTensorImpl() == result.unsafeGetTensorImpl()) {
        return original;
      }
    }
    for (const auto& [storage, original] : storages_) {
      if (storage.get() == result.storage().unsafeGetStorageImpl()) {
        return with_layout_of(result, original, /*view=*/true);
      }
    }
    return adopt(result);
  }

  // Arguments the operator resized or gave other memory keep that on the device.
  void take_back() {
    for (const auto& [storage, original] : storages_) {
      auto* target = original.unsafeGetStorageImpl();
      if (storage->data() == target->data() && storage->nbytes() == target->nbytes()) {
        continue;
      }
      target->set_data_ptr_noswap(wrap(c10::Storage(storage)));
      target->set_nbytes(storage->nbytes());
    }
    for (const auto& [alias, original] : tensors_) {
      if (alias.sizes() != original.sizes() || alias.strides() != original.strides() ||
          alias.storage_offset() != original.storage_offset()) {
        original.unsafeGetTensorImpl()->set_storage_offset(alias.storage_offset());
        original.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides());
      }
    }
  }

 private:
  c10::intrusive_ptr<c10::StorageImpl> alias_of(const c10::Storage& original) {
    for (const auto& [storage, known] : storages_) {
      if (known.is_alias_of(original)) {
        return storage;
      }
    }
    auto storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), original.nbytes(),
        c10::DataPtr(original.mutable_data(), c10::Device(c10::DeviceType::CPU)), c10::GetCPUAllocator(),
        /*resizable=*/true);
    storages_.emplace_back(storage, original);
    return storage;
  }

  // Memory of a host storage under the device's name, counted until the last device tensor lets go of it.
  static c10::DataPtr wrap(c10::Storage storage) {
    const auto size = static_cast<int64_t>(storage.nbytes());
    book(size);
    struct Holder {
      c10::Storage storage;
      int64_t size;
    };
    void* data = storage.mutable_data();
    auto* holder = new Holder{std::move(storage), size};
    auto drop = [](void* context) {
      auto* held = static_cast<Holder*>(context);
      unbook(held->size);
      delete held;
    };
    return {data, holder, drop, kDevice};
  }

  static Tensor with_layout_of(const Tensor& result, const c10::Storage& storage, bool view) {
    const c10::DispatchKeySet keys(c10::DispatchKey::HPU);
    Tensor out = view ? at::detail::make_tensor<c10::TensorImpl>(
                            c10::TensorImpl::VIEW, c10::Storage(storage), keys, result.dtype())
                      : at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, result.dtype());
    out.unsafeGetTensorImpl()->set_storage_offset(result.storage_offset());
    out.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
    out._set_conj(result.is_conj());
    out._set_neg(result.is_neg());
    return out;
  }

  static Tensor adopt(const Tensor& result) {
    const auto& storage = result.storage();
    auto moved = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage.nbytes(), wrap(storage), allocator(), /*resizable=*/true);
    return with_layout_of(result, c10::Storage(moved), /*view=*/false);
  }

  std::vector<std::pair<c10::intrusive_ptr<c10::StorageImpl>, c10::Storage>> storages_;
  std::vector<std::pair<Tensor, Tensor>> tensors_;
};

// Operators that move data between host and device; everything else must not see a host tensor.
bool may_mix(const c10::FunctionSchema& schema) {
  static const std::vector<std::string> names = {"aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"};
  for (const auto& name : names) {
    if (schema.name() == name) {
      return true;
    }
  }
  return false;
}

class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), stack_(stack), mixed_(may_mix(op.schema())) {}

  void run() {
    const auto& schema = op_.schema();
    auto arguments = torch::jit::last(*stack_, schema.arguments().size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      (*stack_)[stack_->size() - arguments.size() + i] = to_host(arguments[i], schema.arguments()[i].name());
    }
    op_.callBoxed(*stack_);
    aliases_.take_back();
    const size_t count = schema.returns().size();
    for (size_t i = stack_->size() - count; i < stack_->size(); ++i) {
      (*stack_)[i] = to_device((*stack_)[i]);
    }
  }

 private:
  c10::IValue to_host(const c10::IValue& value, const std::string& argument) {
    if (value.isTensor()) {
      return host(value.toTensor(), argument);
    }
    if (value.isTensorList()) {
      std::vector<Tensor> tensors;
      for (const Tensor& tensor : value.toTensorList()) {
        tensors.push_back(host(tensor, argument));
      }
      return tensors;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> tensors;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorList()) {
        tensors.push_back(tensor ? std::optional<Tensor>(host(*tensor, argument)) : std::nullopt);
      }
      return tensors;
    }
    if (value.isList() && value.toListRef().size() > 0 && value.toListRef()[0].isList()) {
      c10::impl::GenericList outer(value.toList().elementType());
      for (const auto& entry : value.toListRef()) {
        outer.push_back(to_host(entry, argument));
      }
      return outer;
    }
    if (value.isDevice() && value.toDevice().type() == c10::DeviceType::HPU) {
      return c10::Device(c10::DeviceType::CPU);
    }
    return value;
  }

  Tensor host(const Tensor& tensor, const std::string& argument) {
    if (on_device(tensor)) {
      return aliases_.host(tensor);
    }
    const bool refused = tensor.defined() && tensor.device().type() == c10::DeviceType::CPU && tensor.dim() > 0;
    TORCH_CHECK(
        !refused || mixed_, op_.schema().name(), ": expected all tensors on hpu:0, but ", argument, " of shape ",
        tensor.sizes(), " is on the host; move it with .to(\"hpu\") first");
    return tensor;
  }

  c10::IValue to_device(const c10::IValue& value) {
    if (value.isTensor()) {
      return aliases_.device(value.toTensor());
    }
    if (value.isTensorList()) {
      std::vector<Tensor> tensors;
      for (const Tensor& tensor : value.toTensorList()) {
        tensors.push_back(aliases_.device(tensor));
      }
      return tensors;
    }
    if (value.isList() && value.toListRef().size() > 0 && value.toListRef()[0].isList()) {
      c10::impl::GenericList outer(value.toList().elementType());
      for (const auto& entry : value.toListRef()) {
        outer.push_back(to_device(entry));
      }
      return outer;
    }
    return value;
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack* stack_;
  bool mixed_;
  Aliases aliases_;
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op, stack).run();
}

Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(
      size, allocator(), c10::DispatchKeySet(c10::DispatchKey::HPU), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(
      size, stride, allocator(), c10::DispatchKeySet(c10::DispatchKey::HPU), c10::dtype_or_default(dtype));
}

// Both sides may be on either device; sizes are those of `self`.
Tensor& copy_(Tensor& self, const Tensor& source, bool) {
  Aliases aliases;
  Tensor to = on_device(self) ? aliases.host(self) : self;
  to.copy_(on_device(source) ? aliases.host(source) : source);
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& destination, bool non_blocking) {
  Tensor to = destination;
  copy_(to, self, non_blocking);
  return destination;
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& destination) {
  destination.resize_(self.sizes());
  return copy_from(self, destination, false);
}

} // namespace

TORCH_LIBRARY_IMPL(_, HPU, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, HPU, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  // These have a generic kernel as well, which rounds differently from the CPU's.
  for (const char* name : {"native_layer_norm", "native_group_norm"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

} // namespace hpusim
