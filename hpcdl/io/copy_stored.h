#pragma once

#include <functional>

#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/stored_tensors.h"

namespace hpcdl::io {

/// Calls f(chunk) with all elements of a stored tensor in row-major order, as numbers of the type `dtype`: at most two
/// chunks are in memory. Types other than its own are for floating-point numbers; throws Error where that would make
/// an infinity of a number, or for other types.
void for_each_converted(const StoredTensor& from, DType dtype, const std::function<void(const View& chunk)>& f);

/// Writes them as the tensor `name` of the writer, which has this shape and type. Returns the CRC-32C of what was written.
std::uint32_t copy_stored(const StoredTensor& from, TensorFolderWriter& to, const std::string& name, DType dtype);

}  // namespace hpcdl::io
