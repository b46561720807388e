// SPDX-License-Identifier: Apache-2.0
// A torch device of type HPU whose memory is host memory: allocator, device guard, hooks.
// Kernels are in fallback.cpp. Sizes are bytes.

#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/HPUHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdlib>

namespace hpusim {

namespace {

std::atomic<int64_t> live{0}, peak{0}, allocations{0}, limit{0};

// A block carries its size in front of the data, so that freeing needs no table.
constexpr size_t kHeader = 64;

void release(void* data) {
  if (data == nullptr) {
    return;
  }
  auto* block = static_cast<char*>(data) - kHeader;
  live -= *reinterpret_cast<int64_t*>(block);
  std::free(block);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) {
      return {nullptr, nullptr, &release, kDevice};
    }
    book(static_cast<int64_t>(size));
    void* block = nullptr;
    if (posix_memalign(&block, kHeader, size + kHeader) != 0) {
      live -= static_cast<int64_t>(size);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "emulated HPU: the host has no ", size, " bytes left");
    }
    *static_cast<int64_t*>(block) = static_cast<int64_t>(size);
    void* data = static_cast<char*>(block) + kHeader;
    return {data, data, &release, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }
};

DeviceAllocator device_allocator;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return c10::DeviceType::HPU;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return kDevice;
  }
  c10::Device getDevice() const override {
    return kDevice;
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() <= 0, "hpu:", int(device.index()), " does not exist: a process owns one card, hpu:0");
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::Stream exchangeStream(c10::Stream) const override {
    return c10::Stream(c10::Stream::DEFAULT, kDevice);
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }
  // Work is done when a call returns, so events have nothing to wait for.
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
};

struct Hooks final : at::HPUHooksInterface {
  explicit Hooks(at::HPUHooksArgs) {}
  void init() const override {}
  bool hasHPU() const override {
    return true;
  }
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override {
    return 0;
  }
  at::Device getDeviceFromPtr(void*) const override {
    return kDevice;
  }
  // Host memory is as good as pinned here.
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetCPUAllocator();
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::detail::createCPUGenerator();
  }
};

} // namespace

void book(int64_t size) {
  const int64_t now = live += size;
  if (limit > 0 && now > limit) {
    live -= size;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "emulated HPU out of memory: asked for ", size, " bytes with ", now - size, " of ",
        limit.load(), " in use; lower gpu_memory_utilization or raise HPUSIM_MEM_GIB");
  }
  ++allocations;
  int64_t seen = peak;
  while (now > seen && !peak.compare_exchange_weak(seen, now)) {
  }
}

void unbook(int64_t size) {
  live -= size;
}

c10::Allocator* allocator() {
  return &device_allocator;
}

void set_limit(int64_t bytes) {
  limit = bytes;
}

} // namespace hpusim

namespace at {
// The registry is searched for exactly this name.
using HPUHooks = hpusim::Hooks;
C10_REGISTER_TYPED_CLASS(HPUHooksRegistry, "HPUHooks", HPUHooks);
} // namespace at

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(HPU, hpusim::Guard);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  c10::SetAllocator(c10::DeviceType::HPU, hpusim::allocator());
  module.def("set_limit", &hpusim::set_limit);
  module.def("allocated", [] { return hpusim::live.load(); });
  module.def("peak", [] { return hpusim::peak.load(); });
  module.def("allocations", [] { return hpusim::allocations.load(); });
  module.def("reset_peak", [] { hpusim::peak = hpusim::live.load(); });
  module.def("book", &hpusim::book);
  module.def("unbook", &hpusim::unbook);
}
