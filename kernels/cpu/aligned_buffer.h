// Scratch memory that grows, aligned to a cache line. Contents are lost when it grows.
#ifndef BATON_KERNELS_CPU_ALIGNED_BUFFER_H_
#define BATON_KERNELS_CPU_ALIGNED_BUFFER_H_

#include <cstddef>
#include <memory>
#include <new>

namespace baton::kernels::cpu {

template <typename T>
class AlignedBuffer {
 public:
  // At least n elements, uninitialised when newly allocated.
  T* Reserve(size_t n) {
    if (n > size_) {
      data_.reset();
      data_.reset(static_cast<T*>(::operator new(n * sizeof(T), kAlignment)));
      size_ = n;
    }
    return data_.get();
  }
  T* data() { return data_.get(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(T* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

}  // namespace baton::kernels::cpu

#endif  // BATON_KERNELS_CPU_ALIGNED_BUFFER_H_
