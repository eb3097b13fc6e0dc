#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hpcdl/io/load_options.h"
#include "hpcdl/io/mapped_file.h"

namespace hpcdl::models {

/// What a choice depends on, in bytes and bytes per second.
struct LoadFacts {
  struct Rates {
    double direct = 0, mapped = 0;  // of cold reads; 0: not known
  };
  std::int64_t weights = 0;
  std::int64_t cached = 0;     // of them, in the page cache
  std::int64_t available = 0;  // memory that this process may still take
  std::function<Rates()> measure;
};

struct LoadChoice {
  io::LoadMode mode = io::LoadMode::mapped;  // never automatic
  std::int64_t ram = 0;                      // for weights; unless they stay mapped
  std::string why;                           // in words; empty if it was asked for
};

/// Throws Error for options that exclude each other or memory that is too small.
LoadChoice choose_load(const io::LoadOptions& options, const LoadFacts& facts);

/// Of this machine now, and of the files of a model. Rates are those of two pieces of the largest file that are not cached.
LoadFacts load_facts(const std::vector<const io::MappedFile*>& files);

/// What this process may still take on the host.
std::int64_t free_memory();
/// What may be taken for weights of what is free: the rest is for keys, values, activations and other programs.
std::int64_t share_for_weights(std::int64_t available);

}  // namespace hpcdl::models
