package io.kera.samza;

import org.apache.samza.checkpoint.CheckpointManager;
import org.apache.samza.checkpoint.CheckpointManagerFactory;
import org.apache.samza.config.Config;
import org.apache.samza.config.ConfigException;
import org.apache.samza.config.JobConfig;
import org.apache.samza.config.SystemConfig;
import org.apache.samza.metrics.MetricsRegistry;

/**
 * Checkpoints of a job in a stream of Kera: {@code task.checkpoint.factory}. The system is {@code task.checkpoint.system}, or the job's
 * default system.
 */
public final class KeraCheckpointManagerFactory implements CheckpointManagerFactory {
    static final String SYSTEM = "task.checkpoint.system";

    @Override
    public CheckpointManager getCheckpointManager(Config config, MetricsRegistry registry) {
        JobConfig job = new JobConfig(config);
        String system = config.get(SYSTEM, job.getDefaultSystem().orElse(null));
        if (system == null) {
            throw new ConfigException("checkpoints need a system of Kera: set " + SYSTEM + " to its name");
        }
        String factory = new SystemConfig(config).getSystemFactory(system).orElse("");
        if (!factory.equals(KeraSystemFactory.class.getName())) {
            throw new ConfigException(SYSTEM + " is " + system + ", which is no system of Kera: systems." + system
                    + ".samza.factory must be " + KeraSystemFactory.class.getName());
        }
        String name = job.getName().orElseThrow(() -> new ConfigException("checkpoints need a name of the job: set job.name"));
        return new KeraCheckpointManager(new SystemSettings(system, config), stream(name, job.getJobId()), config);
    }

    /** The stream of a job's checkpoints. */
    static String stream(String job, String id) {
        return "samza-checkpoints_" + job.replace('_', '-') + "_" + id.replace('_', '-');
    }
}
