//! Log files of containers: rotation and clean-up (N-157, N-159, N-160).
