#pragma once

#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/stored_tensors.h"

namespace hpcdl::io {

/// Writes a stored tensor as the tensor `name` of the writer, which has its shape and the type `dtype`, in chunks: at
/// most two of them are in memory. Returns the CRC-32C of what was written. Types other than its own are for
/// floating-point numbers; throws Error where that would make an infinity of a number, or for other types.
std::uint32_t copy_stored(const StoredTensor& from, TensorFolderWriter& to, const std::string& name, DType dtype);

}  // namespace hpcdl::io
