package io.kera.samza;

import org.apache.samza.config.Config;
import org.apache.samza.metrics.MetricsRegistry;
import org.apache.samza.system.SystemAdmin;
import org.apache.samza.system.SystemConsumer;
import org.apache.samza.system.SystemFactory;
import org.apache.samza.system.SystemProducer;

/** Streams of Kera as a system of Samza: {@code systems.NAME.samza.factory}. A lane is a partition. */
// Samza deprecates what it has no default for: they must be there.
@SuppressWarnings("deprecation")
public final class KeraSystemFactory implements SystemFactory {
    @Override
    public SystemConsumer getConsumer(String systemName, Config config, MetricsRegistry registry) {
        return new KeraSystemConsumer(new SystemSettings(systemName, config), registry);
    }

    @Override
    public SystemProducer getProducer(String systemName, Config config, MetricsRegistry registry) {
        return new KeraSystemProducer(new SystemSettings(systemName, config));
    }

    @Override
    public SystemAdmin getAdmin(String systemName, Config config) {
        return new KeraSystemAdmin(new SystemSettings(systemName, config));
    }
}
