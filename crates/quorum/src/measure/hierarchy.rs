//! Cost, delay and availability of multilevel hierarchies in closed form.
