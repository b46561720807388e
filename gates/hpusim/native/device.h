// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace hpusim {

inline const c10::Device kDevice{c10::DeviceType::HPU, 0};

// Host memory that is counted as device memory.
c10::Allocator* allocator();
// Count `size` bytes that something else holds; throws OutOfMemoryError past the limit.
void book(int64_t size);
void unbook(int64_t size);

} // namespace hpusim
